import type { IDisposable } from '@lumino/disposable';

import type { RunUpdate } from '../records';

export interface RunListener {
  updated?: (update: RunUpdate) => void;
  /** Nothing follows any more; `reason` is a line for the user. */
  closed?: (reason: string) => void;
}

/** Where the values of one live run come from, and where requests about it go. */
export interface RunSource extends IDisposable {
  readonly runId: string;
  attach(listener: RunListener): IDisposable;
  requestStop(force: boolean): void;
  /** Asks for an update that holds everything. */
  requestSnapshot(): void;
}
