import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { RunSource } from './runSource';

/** The sources of the runs that live now, by the id of the run. */
export class SourceRegistry {
  /** Takes a source, in place of an older one of the same run, and forgets it when it closes. */
  add(source: RunSource): void {
    const { runId } = source;
    this._sources.get(runId)?.dispose();
    this._sources.set(runId, source);
    source.attach({ closed: () => this._sources.delete(runId) });
    this._added.emit(source);
  }

  get(runId: string): RunSource | undefined {
    return this._sources.get(runId);
  }

  get added(): ISignal<this, RunSource> {
    return this._added;
  }

  private readonly _sources = new Map<string, RunSource>();
  private readonly _added = new Signal<this, RunSource>(this);
}

export const ISourceRegistry = new Token<SourceRegistry>('jupyter-torchdist:ISourceRegistry');
