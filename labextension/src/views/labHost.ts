import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IThemeManager } from '@jupyterlab/apputils';
import { Clipboard } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';

import { NotebookSaver } from './notebookSaver';
import type { ViewHost } from './viewHost';

const OPEN_FILE = 'docmanager:open';
const SHOW_FOLDER = 'filebrowser:open-path';

/** JupyterLab, or Notebook where some of its parts are missing, as the host of run views. */
export function createLabHost(
  { commands, serviceManager }: JupyterFrontEnd,
  notebooks: INotebookTracker | null,
  themes: IThemeManager | null
): ViewHost {
  const saver = new NotebookSaver(notebooks, serviceManager.contents);
  const execute = (command: string, path: string): void => {
    commands.execute(command, { path }).catch((reason: unknown) => {
      console.warn(`${command} failed for ${path}`, reason);
    });
  };
  return {
    openFile: path => {
      execute(OPEN_FILE, path);
    },
    // Asked at each use: the file browser may register its command after this.
    get showFolder() {
      return commands.hasCommand(SHOW_FOLDER)
        ? (path: string) => {
            execute(SHOW_FOLDER, path);
          }
        : null;
    },
    copy: text => {
      Clipboard.copyToSystem(text);
    },
    keepOutput: output => {
      saver.saveAround(output);
    },
    themeChanged: themes?.themeChanged ?? null
  };
}
