import type { IDisposable } from '@lumino/disposable';
import type uPlot from 'uplot';

import type { MetricGroup, MetricLine } from '../models/metricGroups';
import { element, setText } from './dom';
import { DrawScheduler } from './drawScheduler';
import { formatNumber } from './format';
import { createPlot, extent, lineColour, plotData } from './linePlot';

interface Readout {
  node: HTMLElement;
  value: HTMLElement;
}

/** One metric over its steps, with its newest values, or those under the pointer. */
export class MetricChart implements IDisposable {
  constructor(name: string) {
    this.node.dataset.key = name;
    this.node.setAttribute('aria-label', `Chart of ${name}`);
    this._title.textContent = this._title.title = name;
    this._scheduler = new DrawScheduler(this.node, () => {
      this._draw();
    });
    this._resizes.observe(this._target);
    import('uplot').then(
      ({ default: UPlot }) => {
        this._UPlot = UPlot;
        this._scheduler.request();
      },
      () => {
        setText(this._target, 'The chart could not be loaded; reload the page.');
      }
    );
  }

  get isDisposed(): boolean {
    return this._scheduler.isDisposed;
  }

  /** Shows what the lines hold now. */
  update({ lines }: MetricGroup): void {
    if (lines.length !== this._lines.length) {
      this._readouts = lines.map(createReadout);
      this._legend.replaceChildren(...this._readouts.map(({ node }) => node));
      this.restyle();
    }
    this._lines = lines;
    const points = lines.reduce((sum, { series }) => sum + series.points, 0);
    this.node.dataset.points = String(points);
    this._showRange();
    if (!this._isHovered) {
      this._showNewest();
    }
    this._scheduler.request();
  }

  /** Takes new colours: the drawing is made anew. */
  restyle(): void {
    this._plot?.destroy();
    this._plot = null;
    this._scheduler.request();
  }

  dispose(): void {
    this._scheduler.dispose();
    this._resizes.disconnect();
    this._plot?.destroy();
    this._plot = null;
  }

  private _draw(): void {
    const size = { width: this._target.clientWidth, height: this._target.clientHeight };
    if (this._UPlot === null || size.width === 0) {
      return;
    }
    if (this._plot === null) {
      this._plot = createPlot(this._UPlot, this._target, size, this._lines, points => {
        this._showHovered(points);
      });
      return;
    }
    if (this._plot.width !== size.width || this._plot.height !== size.height) {
      this._plot.setSize(size);
    }
    this._plot.setData(plotData(this._lines));
  }

  private _showRange(): void {
    const [steps, values] = [extent(this._lines, 'steps'), extent(this._lines, 'values')];
    setText(
      this._range,
      steps && values
        ? `steps ${formatNumber(steps.min)} – ${formatNumber(steps.max)}, ` +
            `values ${formatNumber(values.min)} to ${formatNumber(values.max)}`
        : 'no values yet'
    );
  }

  private _showNewest(): void {
    setText(this._step, '');
    this._showValues(this._lines.map(({ series }) => series.last));
  }

  private _showHovered(points: readonly (number | null)[]): void {
    const hovered = this._lines.map(({ series }, line) => {
      const index = points[line] ?? null;
      return index === null ? null : { step: series.steps[index], value: series.values[index] };
    });
    const step = hovered.find(point => point !== null)?.step;
    this._isHovered = step !== undefined;
    if (step === undefined) {
      this._showNewest();
      return;
    }
    setText(this._step, `step ${formatNumber(step)}`);
    this._showValues(hovered.map(point => point?.value ?? null));
  }

  private _showValues(values: readonly (number | null)[]): void {
    this._readouts.forEach(({ value }, line) => {
      const shown = values[line] ?? null;
      value.textContent = shown === null ? '–' : formatNumber(shown);
    });
  }

  private readonly _title = element('span', 'chart-title');
  private readonly _step = element('span', 'chart-step');
  private readonly _legend = element('span', 'chart-legend');
  private readonly _target = element('div', 'chart-plot');
  private readonly _range = element('figcaption', 'chart-range');
  readonly node = element(
    'figure',
    'chart',
    element('div', 'chart-header', this._title, this._step, this._legend),
    this._target,
    this._range
  );
  private readonly _scheduler: DrawScheduler;
  private readonly _resizes = new ResizeObserver(() => {
    this._scheduler.request();
  });
  private _UPlot: typeof uPlot | null = null;
  private _plot: uPlot | null = null;
  private _lines: readonly MetricLine[] = [];
  private _readouts: Readout[] = [];
  private _isHovered = false;
}

/** The value of a line; a line with a label shows its colour too. */
function createReadout({ label }: MetricLine, index: number): Readout {
  const value = element('span', 'chart-value');
  const node = element('span', 'chart-readout');
  if (label !== '') {
    const swatch = element('span', 'chart-swatch');
    swatch.style.backgroundColor = `var(${lineColour(index)})`;
    node.append(swatch, element('span', 'chart-label', label));
  }
  node.append(value);
  return { node, value };
}
