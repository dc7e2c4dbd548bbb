import type { Artifact } from '../records';
import { button, element } from './dom';
import { formatSize, plural } from './format';
import type { ViewHost } from './viewHost';

/** The files that a run has published. */
export class ArtifactList {
  constructor(private readonly _host: ViewHost) {
    this.node.hidden = true;
  }

  update(artifacts: readonly Artifact[]): void {
    this.node.hidden = artifacts.length === 0;
    this._title.textContent = plural(artifacts.length, 'artifact');
    this._list.replaceChildren(...artifacts.map(artifact => this._item(artifact)));
  }

  private _item({ path, size, browser_path: browserPath }: Artifact): HTMLElement {
    const name =
      browserPath === null
        ? element('span', 'artifact-path', path)
        : button('link', path, () => {
            this._host.openFile(browserPath);
          });
    return element('li', 'artifact', name, element('span', 'artifact-size', formatSize(size)));
  }

  private readonly _title = element('div', 'artifacts-title');
  private readonly _list = element('ul', 'artifacts-list');
  readonly node = element('div', 'artifacts', this._title, this._list);
}
