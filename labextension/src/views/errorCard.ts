import type { RunError } from '../records';
import { element, setText } from './dom';

/** Why a run failed, or where a run that goes on stands still. */
export class ErrorCard {
  constructor(kind: 'error' | 'hang') {
    this.node = element('div', kind, this._title, this._lines, this._also);
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', kind === 'error' ? 'Error of the run' : 'Standstill');
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
  readonly node: HTMLElement;
}
