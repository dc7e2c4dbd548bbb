import type { RunModel } from '../models/runModel';
import type { RunStatus } from '../records';
import { button, element, setText } from './dom';
import { formatDuration, formatNumber, formatStep, formatWorld } from './format';

const STOP_LABELS = {
  none: 'Stop',
  graceful: 'Stopping… press again to force',
  forced: 'Stopping by force…'
} as const;

/** The state of a run, how far it is, and the button that stops it. */
export class RunHeader {
  constructor(private readonly _model: RunModel) {
    this._state.setAttribute('role', 'status');
    this._state.setAttribute('aria-live', 'polite');
    this._progress.setAttribute('aria-label', 'Steps done');
  }

  update(): void {
    const { status, isActive } = this._model;
    this._updateStop();
    setText(this._state, this._stateText(status));
    this._state.classList.toggle('jp-mod-past', this._model.isCutOff);
    setText(this._detail, this._detailText(status));
    this.updateElapsed();
    if (status === null) {
      return;
    }
    setText(this._name, status.name ?? '');
    setText(this._world, formatWorld(status));
    setText(this._step, status.step === null ? '' : formatStep(status.step, status.total));
    setText(
      this._rate,
      isActive && status.reports > 0 ? `${formatNumber(rounded(status.rate))} reports/s` : ''
    );
    this._updateProgress(status);
  }

  updateElapsed(): void {
    setText(this._elapsed, this._model.status ? formatDuration(this._model.elapsed()) : '');
  }

  private _stateText(status: RunStatus | null): string {
    const word = status?.state ?? 'connecting';
    return this._model.isCutOff ? `last seen ${word}` : word;
  }

  private _detailText(status: RunStatus | null): string {
    const { isCutOff, connection, closedReason } = this._model;
    if (!isCutOff) {
      return status?.detail ?? '';
    }
    return connection === 'closed' ? closedReason : 'not connected to a kernel';
  }

  private _updateProgress({ step, total }: RunStatus): void {
    this._progress.hidden = total === null;
    this._progress.max = total ?? 1;
    this._progress.value = Math.min(step ?? 0, total ?? 1);
  }

  private _updateStop(): void {
    const { isActive, stopRequest } = this._model;
    this._stop.disabled = stopRequest === 'forced';
    setText(this._stop, isActive ? STOP_LABELS[stopRequest] : '');
  }

  private readonly _state = element('span', 'state');
  private readonly _name = element('span', 'name');
  private readonly _world = element('span', 'world');
  private readonly _elapsed = element('span', 'elapsed');
  private readonly _step = element('span', 'step');
  private readonly _rate = element('span', 'rate');
  private readonly _stop = button('stop', '', () => {
    this._model.stop();
  });
  private readonly _progress = element('progress', 'progress');
  private readonly _detail = element('div', 'detail');
  readonly node = element(
    'div',
    'header',
    element(
      'div',
      'header-line',
      this._state,
      this._name,
      this._world,
      this._elapsed,
      this._step,
      this._rate,
      this._stop
    ),
    this._progress,
    this._detail
  );
}

/** One digit after the point is what a reader can use of a rate. */
function rounded(rate: number): number {
  return Math.round(rate * 10) / 10;
}
