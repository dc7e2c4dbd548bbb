import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IThemeManager } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';

import { Sessions } from './client/sessions';
import { ISourceRegistry, SourceRegistry } from './client/sourceRegistry';
import { LiveRuns } from './models/liveRuns';
import { createLabHost } from './views/labHost';
import { createRendererFactory } from './views/runRenderer';

const sources: JupyterFrontEndPlugin<SourceRegistry> = {
  id: 'jupyter-torchdist:sources',
  description: 'Holds the sources of live runs.',
  autoStart: true,
  provides: ISourceRegistry,
  activate: () => new SourceRegistry()
};

const kernelSource: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-torchdist:kernel-source',
  description: 'Finds live runs in the kernels of notebooks and consoles.',
  autoStart: true,
  requires: [ISourceRegistry],
  optional: [INotebookTracker, IConsoleTracker],
  activate: (
    _,
    registry: SourceRegistry,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null
  ) => {
    const sessions = new Sessions(registry);
    for (const tracker of [notebooks, consoles]) {
      tracker?.forEach(({ sessionContext }) => {
        sessions.watch(sessionContext);
      });
      tracker?.widgetAdded.connect((_, { sessionContext }) => {
        sessions.watch(sessionContext);
      });
    }
  }
};

const runView: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-torchdist:run-view',
  description: 'Draws runs in the outputs of cells.',
  autoStart: true,
  requires: [ISourceRegistry, IRenderMimeRegistry],
  optional: [INotebookTracker, IThemeManager],
  activate: (
    app,
    registry: SourceRegistry,
    rendermime: IRenderMimeRegistry,
    notebooks: INotebookTracker | null,
    themes: IThemeManager | null
  ) => {
    const host = createLabHost(app, notebooks, themes);
    rendermime.addFactory(createRendererFactory(new LiveRuns(registry), host));
  }
};

export default [sources, kernelSource, runView];
