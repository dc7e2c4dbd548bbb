import { button, element, setText } from './dom';
import type { ViewHost } from './viewHost';

/** Where the folder of a run is, and ways to get there. */
export class FolderLine {
  constructor(private readonly _host: ViewHost) {
    this._show.title = 'Show the folder in the file browser';
  }

  update(folder: string, browserPath: string | null): void {
    this.node.hidden = folder === '';
    this._browserPath = browserPath;
    const canShow = browserPath !== null && this._host.showFolder !== null;
    setText(this._show, canShow ? folder : '');
    setText(this._path, canShow ? '' : folder);
  }

  private _browserPath: string | null = null;
  private readonly _path = element('span', 'folder-path');
  private readonly _show = button('link', '', () => {
    this._host.showFolder?.(this._browserPath ?? '');
  });
  private readonly _copy = button('copy', 'Copy path', () => {
    this._host.copy(this._show.textContent || this._path.textContent || '');
  });
  readonly node = element('div', 'folder', 'Run folder ', this._show, this._path, this._copy);
}
