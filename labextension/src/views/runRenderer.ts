import type { IRenderMime } from '@jupyterlab/rendermime';
import { PanelLayout, Widget } from '@lumino/widgets';

import { RecordError } from '../decode';
import type { LiveRuns } from '../models/liveRuns';
import { RunModel } from '../models/runModel';
import type { RunBundle } from '../records';
import { decodeBundle, PLOTLY_MIME_TYPE, RUN_MIME_TYPE } from '../records';
import { element } from './dom';
import { RunView } from './runView';
import type { ViewHost } from './viewHost';

/** Draws the run of an output: from its source while it lives, else from what the output holds. */
class RunRenderer extends Widget implements IRenderMime.IRenderer {
  constructor(
    private readonly _runs: LiveRuns,
    private readonly _host: ViewHost
  ) {
    super();
    this.addClass('jp-torchdist-output');
    this.layout = this._content;
    _runs.added.connect(this._onRunAdded, this);
  }

  renderModel(output: IRenderMime.IMimeModel): Promise<void> {
    try {
      const bundle = decodeBundle(output.data[RUN_MIME_TYPE]);
      this._bundle = bundle;
      this._show(this._modelOf(bundle, output.data[PLOTLY_MIME_TYPE]));
    } catch (error) {
      if (!(error instanceof RecordError)) {
        throw error;
      }
      this._bundle = null;
      this._replaceContent(new Widget({ node: element('p', 'problem', error.message) }));
    }
    return Promise.resolve();
  }

  /** A model that a source has filled knows as much as the output, so the view is kept as it is. */
  private _modelOf(bundle: RunBundle, plotly: unknown): RunModel {
    const shown = this._view?.model;
    const filled =
      shown?.runId === bundle.run_id && shown.connection !== 'saved' && !shown.isCutOff
        ? shown
        : this._runs.get(bundle.run_id);
    filled?.offer(bundle);
    return filled ?? RunModel.fromBundle(bundle, plotly);
  }

  private _onRunAdded(_: LiveRuns, run: RunModel): void {
    if (this._bundle?.run_id === run.runId) {
      run.offer(this._bundle);
      this._show(run);
    }
  }

  private _show(model: RunModel): void {
    if (this._view?.model !== model) {
      const view = new RunView(model, this._host);
      this._replaceContent(view);
      this._view = view;
    }
  }

  private _replaceContent(widget: Widget): void {
    this._view = null;
    for (const old of [...this._content.widgets]) {
      old.dispose();
    }
    this._content.addWidget(widget);
  }

  private readonly _content = new PanelLayout();
  private _bundle: RunBundle | null = null;
  private _view: RunView | null = null;
}

export function createRendererFactory(
  runs: LiveRuns,
  host: ViewHost
): IRenderMime.IRendererFactory {
  return {
    safe: true,
    mimeTypes: [RUN_MIME_TYPE],
    // Before plotly's renderer: the chart lies in the same output.
    defaultRank: -20,
    createRenderer: () => new RunRenderer(runs, host)
  };
}
