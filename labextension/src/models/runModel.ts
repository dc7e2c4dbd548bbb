import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { RunSource } from '../client/runSource';
import type { Artifact, RunBundle, RunStatus, RunUpdate, SeriesDelta } from '../records';
import { decodePlotly, isFinal } from '../records';
import { Series } from './series';

/** `saved`: from the notebook file alone; `closed`: the source ended. */
export type Connection = 'live' | 'saved' | 'closed';

export type StopRequest = 'none' | 'graceful' | 'forced';

/** The state of one run, as far as this page knows it. */
export class RunModel {
  private constructor(
    readonly runId: string,
    private _connection: Connection
  ) {}

  /** Follows a source to its end. */
  static fromSource(source: RunSource): RunModel {
    const model = new RunModel(source.runId, 'live');
    model._source = source;
    source.attach({
      updated: update => {
        model._apply(update);
      },
      closed: reason => {
        model._source = null;
        model._connection = 'closed';
        model._closedReason = reason;
        model._statusChanged.emit();
      }
    });
    return model;
  }

  /** What a saved output tells without a source; `plotly` is the value of its plotly type, if any. */
  static fromBundle(bundle: RunBundle, plotly: unknown): RunModel {
    const model = new RunModel(bundle.run_id, 'saved');
    model._setStatus(bundle.status);
    if (plotly !== undefined) {
      model._applySeries(decodePlotly(plotly));
    }
    return model;
  }

  get connection(): Connection {
    return this._connection;
  }

  /** Why the source ended, or an empty string. */
  get closedReason(): string {
    return this._closedReason;
  }

  /** Null until a source has sent its first status. */
  get status(): RunStatus | null {
    return this._status;
  }

  get isFinal(): boolean {
    return this._status !== null && isFinal(this._status);
  }

  /** Whether the run goes on at this moment and this page sees it. */
  get isActive(): boolean {
    return this._connection === 'live' && !this.isFinal;
  }

  /** Whether the run went on when this page saw it last, and nothing more will come. */
  get isCutOff(): boolean {
    return this._connection !== 'live' && !this.isFinal;
  }

  get stopRequest(): StopRequest {
    return this._stopRequest === 'none' && this._status?.state === 'stopping'
      ? 'graceful'
      : this._stopRequest;
  }

  get series(): Iterable<Series> {
    return this._series.values();
  }

  get tail(): string {
    return this._tail;
  }

  get artifacts(): readonly Artifact[] {
    return this._artifacts;
  }

  get statusChanged(): ISignal<this, void> {
    return this._statusChanged;
  }

  get seriesChanged(): ISignal<this, void> {
    return this._seriesChanged;
  }

  get tailChanged(): ISignal<this, void> {
    return this._tailChanged;
  }

  get artifactsChanged(): ISignal<this, void> {
    return this._artifactsChanged;
  }

  /** Seconds since the run was submitted; the time since the last status counts while it is active. */
  elapsed(now = Date.now()): number {
    const { elapsed } = this._status ?? { elapsed: 0 };
    return this.isActive && this._status ? elapsed + (now - this._statusTime) / 1000 : elapsed;
  }

  /** Takes a status of the output where it knows more than the source has said. */
  offer({ status }: RunBundle): void {
    if (this._status === null || (!this.isFinal && isFinal(status))) {
      this._setStatus(status);
    }
  }

  /** The first request is graceful, the next one forces. */
  stop(): void {
    if (this._source === null || this._stopRequest === 'forced') {
      return;
    }
    const force = this.stopRequest === 'graceful';
    this._source.requestStop(force);
    this._stopRequest = force ? 'forced' : 'graceful';
    this._statusChanged.emit();
  }

  private _apply({ status, series, tail, artifacts }: RunUpdate): void {
    if (status !== null) {
      this._setStatus(status);
    }
    if (series.length > 0) {
      this._applySeries(series);
    }
    if (tail !== null) {
      this._tail = tail;
      this._tailChanged.emit();
    }
    if (artifacts !== null) {
      this._artifacts = artifacts;
      this._artifactsChanged.emit();
    }
  }

  private _setStatus(status: RunStatus): void {
    this._status = status;
    this._statusTime = Date.now();
    this._statusChanged.emit();
  }

  private _applySeries(deltas: readonly SeriesDelta[]): void {
    for (const delta of deltas) {
      const id = `${delta.rank} ${delta.key}`;
      const series = this._series.get(id) ?? new Series(delta.key, delta.rank);
      this._series.set(id, series);
      series.apply(delta);
    }
    this._seriesChanged.emit();
  }

  private _source: RunSource | null = null;
  private _closedReason = '';
  private _status: RunStatus | null = null;
  private _statusTime = 0;
  private _stopRequest: StopRequest = 'none';
  private _tail = '';
  private _artifacts: readonly Artifact[] = [];
  private readonly _series = new Map<string, Series>();
  private readonly _statusChanged = new Signal<this, void>(this);
  private readonly _seriesChanged = new Signal<this, void>(this);
  private readonly _tailChanged = new Signal<this, void>(this);
  private readonly _artifactsChanged = new Signal<this, void>(this);
}
