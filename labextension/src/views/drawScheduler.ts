import type { IDisposable } from '@lumino/disposable';

const MIN_INTERVAL_MS = 100;

/**
 * Draws at most ten times a second, in an animation frame, and only while the node is on screen.
 * In a hidden tab the frame waits, and the draw that comes then sees the newest state.
 */
export class DrawScheduler implements IDisposable {
  constructor(
    node: Element,
    private readonly _draw: () => void
  ) {
    this._observer = new IntersectionObserver(entries => {
      this._isOnScreen = entries.at(-1)?.isIntersecting ?? false;
      this._schedule();
    });
    this._observer.observe(node);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  request(): void {
    this._isDirty = true;
    this._schedule();
  }

  dispose(): void {
    this._isDisposed = true;
    this._observer.disconnect();
    clearTimeout(this._timer);
    cancelAnimationFrame(this._frame);
  }

  private _schedule(): void {
    if (!this._isDirty || !this._isOnScreen || this._isScheduled || this._isDisposed) {
      return;
    }
    this._isScheduled = true;
    const delay = Math.max(0, this._lastDraw + MIN_INTERVAL_MS - performance.now());
    this._timer = setTimeout(() => {
      this._frame = requestAnimationFrame(() => {
        this._isScheduled = this._isDirty = false;
        this._lastDraw = performance.now();
        this._draw();
      });
    }, delay);
  }

  private readonly _observer: IntersectionObserver;
  private _isDirty = false;
  private _isOnScreen = false;
  private _isScheduled = false;
  private _isDisposed = false;
  private _lastDraw = -Infinity;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _frame = 0;
}
