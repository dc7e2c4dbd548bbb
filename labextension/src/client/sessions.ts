import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';

import { KernelRuns } from './kernelRuns';
import type { SourceRegistry } from './sourceRegistry';

/** Follows the sessions of notebooks and consoles through all of their kernels. */
export class Sessions {
  constructor(private readonly _registry: SourceRegistry) {}

  watch(context: ISessionContext): void {
    context.kernelChanged.connect((_, { newValue }) => {
      this._connect(newValue);
    });
    this._connect(context.session?.kernel);
  }

  private _connect(kernel: Kernel.IKernelConnection | null | undefined): void {
    // Only one connection a kernel and page handles comms; on the others nothing can be sent.
    if (kernel?.handleComms && !this._kernels.has(kernel)) {
      this._kernels.set(kernel, new KernelRuns(kernel, this._registry));
    }
  }

  private readonly _kernels = new WeakMap<Kernel.IKernelConnection, KernelRuns>();
}
