import type { ISignal } from '@lumino/signaling';

/** What a view asks of the application around it. */
export interface ViewHost {
  openFile(browserPath: string): void;
  /** Null where there is no file browser. */
  readonly showFolder: ((browserPath: string) => void) | null;
  copy(text: string): void;
  /** Called when a live run is on the page, so that a reload of the page finds its output. */
  keepOutput(output: Node): void;
  /** Null where the theme never changes. */
  readonly themeChanged: ISignal<unknown, unknown> | null;
}
