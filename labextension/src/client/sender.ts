import type { Kernel } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';

type SubshellComm = Kernel.IComm & { readonly subshellStarted?: Promise<void> };

/**
 * Sends over a comm in order, once the subshell is there that handles its messages beside a running
 * cell: a message sent before that waits in the kernel until the cell ends.
 */
export class Sender {
  constructor(
    private readonly _comm: Kernel.IComm,
    private readonly _kernel: Kernel.IKernelConnection
  ) {}

  send(data: JSONObject): void {
    this._last = this._last
      .then(() => this._subshell())
      .then(() => {
        if (!this._comm.isDisposed && !this._kernel.isDisposed) {
          this._comm.send(data);
        }
      });
  }

  private async _subshell(): Promise<void> {
    const { commsOverSubshells, subshellStarted } = this._comm as SubshellComm;
    if (subshellStarted === undefined || (commsOverSubshells ?? 'disabled') === 'disabled') {
      return;
    }
    await this._kernel.info;
    if (this._kernel.supportsSubshells) {
      await subshellStarted.catch(() => undefined);
    }
  }

  private _last: Promise<void> = Promise.resolve();
}
