import { element, setText } from './dom';
import { stripEscapes } from './format';

/** How near to the end counts as the end, in pixels. */
const END_MARGIN = 4;

/** The last lines that rank 0 wrote; stays at the end unless the reader scrolled up. */
export class OutputTail {
  constructor() {
    this.node.open = true;
    this.node.hidden = true;
    this._lines.tabIndex = 0;
    this._lines.setAttribute('aria-label', 'Output of rank 0');
    this.node.addEventListener('toggle', () => {
      this._scrollToEnd();
    });
  }

  update(tail: string): void {
    const { scrollTop, scrollHeight, clientHeight } = this._lines;
    const wasAtEnd = scrollTop + clientHeight >= scrollHeight - END_MARGIN;
    setText(this._lines, stripEscapes(tail));
    this.node.hidden = this._lines.hidden;
    if (wasAtEnd) {
      this._scrollToEnd();
    }
  }

  private _scrollToEnd(): void {
    this._lines.scrollTop = this._lines.scrollHeight;
  }

  private readonly _lines = element('pre', 'tail-lines');
  readonly node = element(
    'details',
    'tail',
    element('summary', 'tail-summary', 'Output of rank 0'),
    this._lines
  );
}
