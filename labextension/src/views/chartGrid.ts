import type { IDisposable } from '@lumino/disposable';

import { groupByMetric } from '../models/metricGroups';
import type { RunModel } from '../models/runModel';
import { element, setText } from './dom';
import { MetricChart } from './metricChart';

/** A chart for each metric. */
export class ChartGrid implements IDisposable {
  get isDisposed(): boolean {
    return this._isDisposed;
  }

  update(model: RunModel): void {
    for (const group of groupByMetric(model.series)) {
      this._chart(group.name).update(group);
    }
    this.updateEmpty(model);
  }

  /** Says why there is no chart, where there is none. */
  updateEmpty(model: RunModel): void {
    setText(this._empty, this._charts.size > 0 ? '' : emptyText(model));
  }

  restyle(): void {
    this._charts.forEach(chart => {
      chart.restyle();
    });
  }

  dispose(): void {
    this._isDisposed = true;
    this._charts.forEach(chart => {
      chart.dispose();
    });
    this._charts.clear();
  }

  private _chart(name: string): MetricChart {
    let chart = this._charts.get(name);
    if (chart === undefined) {
      chart = new MetricChart(name);
      this._charts.set(name, chart);
      this._grid.append(chart.node);
    }
    return chart;
  }

  private readonly _empty = element('p', 'empty');
  private readonly _grid = element('div', 'charts');
  readonly node = element('div', 'metrics', this._empty, this._grid);
  private readonly _charts = new Map<string, MetricChart>();
  private _isDisposed = false;
}

function emptyText(model: RunModel): string {
  if (model.isActive) {
    return 'waiting for the first report';
  }
  return (model.status?.reports ?? 0) > 0
    ? 'the reports of this run are not in the notebook'
    : 'nothing was reported';
}
