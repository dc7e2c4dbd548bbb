import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import type { RunModel } from '../models/runModel';
import { ArtifactList } from './artifactList';
import { ChartGrid } from './chartGrid';
import { element } from './dom';
import { ErrorCard } from './errorCard';
import { FolderLine } from './folderLine';
import { LaunchLine } from './launchLine';
import { OutputTail } from './outputTail';
import { RunHeader } from './runHeader';
import type { ViewHost } from './viewHost';

const CLOCK_MS = 1000;

/** Draws one run, live or from its saved output. */
export class RunView extends Widget {
  constructor(
    readonly model: RunModel,
    private readonly _host: ViewHost
  ) {
    super();
    this.addClass('jp-torchdist-run');
    this.node.dataset.runId = model.runId;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'Training run');
    this._header = new RunHeader(model);
    this._artifacts = new ArtifactList(_host);
    this._folder = new FolderLine(_host);
    this.node.append(
      this._header.node,
      this._notes,
      this._error.node,
      this._hang.node,
      this._charts.node,
      this._artifacts.node,
      this._tail.node,
      this._launch.node,
      this._folder.node
    );
    model.statusChanged.connect(this._onStatusChanged, this);
    model.seriesChanged.connect(this._onSeriesChanged, this);
    model.tailChanged.connect(this._onTailChanged, this);
    model.artifactsChanged.connect(this._onArtifactsChanged, this);
    _host.themeChanged?.connect(this._onThemeChanged, this);
    this._onStatusChanged();
    this._onSeriesChanged();
    this._onTailChanged();
    this._onArtifactsChanged();
  }

  override dispose(): void {
    clearInterval(this._clock);
    this._charts.dispose();
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._clock = setInterval(() => {
      this._header.updateElapsed();
    }, CLOCK_MS);
    if (this.model.isActive && !this._isKept) {
      this._isKept = true;
      this._host.keepOutput(this.node);
    }
  }

  protected override onBeforeDetach(message: Message): void {
    clearInterval(this._clock);
    super.onBeforeDetach(message);
  }

  private _onStatusChanged(): void {
    const { status, connection } = this.model;
    this.node.dataset.state = status?.state ?? 'connecting';
    this.node.dataset.connection = connection;
    this._header.update();
    this._notes.replaceChildren(...(status?.notes ?? []).map(note => element('li', 'note', note)));
    this._error.update(status?.error ?? null);
    this._hang.update(status?.hang ?? null);
    this._folder.update(status?.folder ?? '', status?.folder_browser_path ?? null);
    this._launch.update(status?.timeline ?? {});
    this._charts.updateEmpty(this.model);
  }

  private _onSeriesChanged(): void {
    this._charts.update(this.model);
  }

  private _onTailChanged(): void {
    this._tail.update(this.model.tail);
  }

  private _onArtifactsChanged(): void {
    this._artifacts.update(this.model.artifacts);
  }

  private _onThemeChanged(): void {
    this._charts.restyle();
  }

  private readonly _header: RunHeader;
  private readonly _notes = element('ul', 'notes');
  private readonly _error = new ErrorCard('error');
  private readonly _hang = new ErrorCard('hang');
  private readonly _charts = new ChartGrid();
  private readonly _artifacts: ArtifactList;
  private readonly _tail = new OutputTail();
  private readonly _launch = new LaunchLine();
  private readonly _folder: FolderLine;
  private _isKept = false;
  private _clock: ReturnType<typeof setInterval> | undefined;
}
