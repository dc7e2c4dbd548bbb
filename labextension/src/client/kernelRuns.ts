import type { Kernel, KernelMessage } from '@jupyterlab/services';

import { COMM_TARGET, decodeRunId, isUpdate, SNAPSHOT_REQUEST } from '../records';
import { KernelSource } from './kernelSource';
import { Sender } from './sender';
import type { SourceRegistry } from './sourceRegistry';

/** Finds the runs behind one connection to a kernel, those that began before this page too. */
export class KernelRuns {
  constructor(
    private readonly _kernel: Kernel.IKernelConnection,
    private readonly _registry: SourceRegistry
  ) {
    _kernel.registerCommTarget(COMM_TARGET, (comm, message) => {
      this._commIds.add(comm.commId);
      // The kernel hears that someone draws here, and need not send a chart to frontends without us.
      this._add(comm, message).requestSnapshot();
    });
    _kernel.iopubMessage.connect(this._onIOPubMessage, this);
    this._recoverQuietRuns().catch((reason: unknown) => {
      console.warn('A kernel could not be asked for its open runs', reason);
    });
  }

  /** After a reload of the page an idle kernel tells its open comms; a busy one answers too late. */
  private async _recoverQuietRuns(): Promise<void> {
    const { content } = await this._kernel.requestCommInfo({ target_name: COMM_TARGET });
    if (content.status !== 'ok') {
      return;
    }
    for (const commId of Object.keys(content.comms)) {
      if (!this._commIds.has(commId)) {
        const comm = this._recover(commId);
        comm.onMsg = message => {
          this._adopt(comm, message);
        };
      }
    }
  }

  /** After a reload of the page updates still arrive, on a comm that it does not know. */
  private _onIOPubMessage(_: unknown, message: KernelMessage.IMessage): void {
    if (message.header.msg_type !== 'comm_msg') {
      return;
    }
    const update = message as KernelMessage.ICommMsgMsg;
    const { comm_id, data } = update.content;
    // A comm that was known before belongs to a kernel that has restarted since.
    if (!this._commIds.has(comm_id) && isUpdate(data)) {
      this._adopt(this._recover(comm_id), update);
    }
  }

  private _recover(commId: string): Kernel.IComm {
    this._commIds.add(commId);
    const comm = this._kernel.createComm(COMM_TARGET, commId);
    new Sender(comm, this._kernel).send(SNAPSHOT_REQUEST);
    return comm;
  }

  private _adopt(comm: Kernel.IComm, message: KernelMessage.ICommMsgMsg): void {
    this._add(comm, message).receive(message);
  }

  private _add(
    comm: Kernel.IComm,
    { content }: KernelMessage.ICommOpenMsg | KernelMessage.ICommMsgMsg
  ): KernelSource {
    const source = new KernelSource(decodeRunId(content.data), comm, this._kernel);
    this._registry.add(source);
    return source;
  }

  private readonly _commIds = new Set<string>();
}
