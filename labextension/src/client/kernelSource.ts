import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { RecordError } from '../decode';
import { decodeUpdate, SNAPSHOT_REQUEST, stopRequest } from '../records';
import type { RunListener, RunSource } from './runSource';
import { Sender } from './sender';

const GONE_STATUSES: readonly Kernel.Status[] = [
  'restarting',
  'autorestarting',
  'terminating',
  'dead'
];

/** A run whose values come over a Jupyter comm. */
export class KernelSource implements RunSource {
  constructor(
    readonly runId: string,
    comm: Kernel.IComm,
    private readonly _kernel: Kernel.IKernelConnection
  ) {
    this._sender = new Sender(comm, _kernel);
    comm.onMsg = message => {
      this.receive(message);
    };
    comm.onClose = () => {
      this._close('the kernel ended the connection');
    };
    _kernel.statusChanged.connect(this._onStatusChanged, this);
    _kernel.disposed.connect(this._onKernelGone, this);
  }

  get isDisposed(): boolean {
    return this._isClosed;
  }

  dispose(): void {
    this._close('disconnected');
  }

  attach(listener: RunListener): IDisposable {
    this._listeners.add(listener);
    return new DisposableDelegate(() => this._listeners.delete(listener));
  }

  requestStop(force: boolean): void {
    this._send(stopRequest(force));
  }

  requestSnapshot(): void {
    this._send(SNAPSHOT_REQUEST);
  }

  receive(message: KernelMessage.ICommMsgMsg): void {
    if (this._isClosed) {
      return;
    }
    try {
      const update = decodeUpdate(message.content.data, message.buffers ?? []);
      if (this._seq !== null && update.seq !== this._seq + 1) {
        this.requestSnapshot();
      }
      this._seq = update.seq;
      this._listeners.forEach(listener => {
        listener.updated?.(update);
      });
    } catch (error) {
      if (!(error instanceof RecordError)) {
        throw error;
      }
      this._close(error.message);
    }
  }

  private _send(data: JSONObject): void {
    if (!this._isClosed) {
      this._sender.send(data);
    }
  }

  private _onStatusChanged(_: unknown, status: Kernel.Status): void {
    if (GONE_STATUSES.includes(status)) {
      this._onKernelGone();
    }
  }

  private _onKernelGone(): void {
    this._close('kernel gone');
  }

  private _close(reason: string): void {
    if (this._isClosed) {
      return;
    }
    this._isClosed = true;
    this._kernel.statusChanged.disconnect(this._onStatusChanged, this);
    this._kernel.disposed.disconnect(this._onKernelGone, this);
    const listeners = [...this._listeners];
    this._listeners.clear();
    listeners.forEach(listener => {
      listener.closed?.(reason);
    });
    Signal.clearData(this);
  }

  private readonly _sender: Sender;
  private readonly _listeners = new Set<RunListener>();
  private _isClosed = false;
  private _seq: number | null = null;
}
