import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { RunSource } from '../client/runSource';
import type { SourceRegistry } from '../client/sourceRegistry';
import { RunModel } from './runModel';

/**
 * One model for each live run, shared by all outputs that show it. A model exists from the moment
 * its source appears, so that nothing is lost while the output is not drawn yet.
 */
export class LiveRuns {
  constructor(sources: SourceRegistry) {
    sources.added.connect((_, source) => {
      this._follow(source);
    });
  }

  get(runId: string): RunModel | undefined {
    return this._models.get(runId);
  }

  get added(): ISignal<this, RunModel> {
    return this._added;
  }

  private _follow(source: RunSource): void {
    const model = RunModel.fromSource(source);
    this._models.set(model.runId, model);
    source.attach({ closed: () => this._models.delete(model.runId) });
    this._added.emit(model);
  }

  private readonly _models = new Map<string, RunModel>();
  private readonly _added = new Signal<this, RunModel>(this);
}
