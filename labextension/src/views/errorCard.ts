import type { RunError } from '../records';
import { element, setText } from './dom';

/** Why a run failed. */
export class ErrorCard {
  constructor() {
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', 'Error of the run');
  }

  update(error: RunError | null): void {
    this.node.hidden = error === null;
    setText(this._title, error?.title ?? '');
    setText(this._lines, error?.lines.join('\n') ?? '');
    setText(this._also, error?.also ?? '');
  }

  private readonly _title = element('div', 'error-title');
  private readonly _lines = element('pre', 'error-lines');
  private readonly _also = element('div', 'error-also');
  readonly node = element('div', 'error', this._title, this._lines, this._also);
}
