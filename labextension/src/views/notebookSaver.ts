import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Contents } from '@jupyterlab/services';

/** Saves the notebook of an output where that needs no question to the user. */
export class NotebookSaver {
  constructor(
    private readonly _notebooks: INotebookTracker | null,
    private readonly _contents: Contents.IManager
  ) {}

  saveAround(output: Node): void {
    const panel = this._notebooks?.find(({ node }) => node.contains(output));
    if (panel) {
      // One by one: of two saves at once JupyterLab takes the first for a change by someone else.
      this._queue = this._queue
        .then(() => this._save(panel))
        .catch((reason: unknown) => {
          console.warn('The notebook could not be saved for its live run', reason);
        });
    }
  }

  private async _save({ context }: NotebookPanel): Promise<void> {
    const { contentsModel, model, path } = context;
    const isSavable = context.isReady && !model.readOnly && !model.collaborative;
    if (context.isDisposed || !isSavable || !model.dirty || !contentsModel?.writable) {
      return;
    }
    const onDisk = await this._contents.get(path, { content: false });
    if (onDisk.last_modified === contentsModel.last_modified) {
      await context.save();
    }
  }

  private _queue = Promise.resolve();
}
