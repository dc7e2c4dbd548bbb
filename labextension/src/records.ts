/** The records that cross from the kernel to the browser, see docs/run-view.md, and their codecs. */

import type { Decoder } from './decode';
import {
  dictionary,
  flag,
  isObject,
  list,
  nullable,
  number,
  oneOf,
  record,
  RecordError,
  text
} from './decode';

export const RUN_MIME_TYPE = 'application/vnd.jupyter-torchdist.run.v1+json';
export const PLOTLY_MIME_TYPE = 'application/vnd.plotly.v1+json';
export const COMM_TARGET = 'jupyter_torchdist.run';

const VERSION = 1;

const FINAL_STATES = ['finished', 'failed', 'stopped', 'lost'] as const;
const STATES = [
  'waiting',
  'starting',
  'running',
  'stopping',
  'publishing',
  ...FINAL_STATES
] as const;

export type RunState = (typeof STATES)[number];

export interface RunError {
  title: string;
  lines: string[];
  also: string | null;
}

export interface RunStatus {
  state: RunState;
  detail: string;
  name: string | null;
  nodes: number;
  /** Per node. */
  workers: number;
  /** Per worker. */
  gpus: number;
  /** Seconds since the run was submitted. */
  elapsed: number;
  step: number | null;
  total: number | null;
  reports: number;
  rate: number;
  folder: string;
  /** The folder for the file browser; null when it is outside the browser's root. */
  folder_browser_path: string | null;
  notes: string[];
  /** Seconds of each part of the launch. */
  timeline: Record<string, number>;
  error: RunError | null;
  /** Nothing comes from any rank, but the run goes on. */
  hang: RunError | null;
}

export interface Artifact {
  path: string;
  size: number;
  browser_path: string | null;
}

/** Points of one metric of one rank; a NaN value is a gap, a NaN step a break between segments. */
export interface SeriesDelta {
  key: string;
  rank: number;
  reset: boolean;
  steps: Float64Array;
  values: Float64Array;
}

/** One message of the kernel; null means unchanged. */
export interface RunUpdate {
  run_id: string;
  seq: number;
  status: RunStatus | null;
  series: SeriesDelta[];
  tail: string | null;
  artifacts: Artifact[] | null;
}

/** What the output of the cell says about its run. */
export interface RunBundle {
  run_id: string;
  status: RunStatus;
}

export const SNAPSHOT_REQUEST = { kind: 'snapshot' } as const;

export function stopRequest(force: boolean): { kind: 'stop'; force: boolean } {
  return { kind: 'stop', force };
}

export function isFinal(status: RunStatus): boolean {
  return FINAL_STATES.some(state => state === status.state);
}

const runError = record<RunError>({ title: text, lines: list(text), also: nullable(text) });

const runStatus = record<RunStatus>({
  state: oneOf(STATES),
  detail: text,
  name: nullable(text),
  nodes: number,
  workers: number,
  gpus: number,
  elapsed: number,
  step: nullable(number),
  total: nullable(number),
  reports: number,
  rate: number,
  folder: text,
  folder_browser_path: nullable(text),
  notes: list(text),
  timeline: dictionary(number),
  error: nullable(runError),
  hang: nullable(runError)
});

const artifact = record<Artifact>({ path: text, size: number, browser_path: nullable(text) });

const version: Decoder<number> = (value, at) => {
  const found = number(value, at);
  if (found !== VERSION) {
    throw new RecordError(
      `This run speaks version ${found} of the run view's protocol, and the installed ` +
        `jupyter-torchdist extension version ${VERSION}. Install the same version of ` +
        'jupyter-torchdist beside JupyterLab and in the kernel, then reload the page.'
    );
  }
  return found;
};

const versioned = record<{ version: number }>({ version });

/** Checks the version first, so that a newer record is not called malformed. */
function decodeVersioned<T>(decode: Decoder<T>, value: unknown, at: string): T {
  versioned(value, at);
  return decode(value, at);
}

const bundle = record<RunBundle>({ run_id: text, status: runStatus });

export function decodeBundle(value: unknown): RunBundle {
  return decodeVersioned(bundle, value, 'bundle');
}

const runId = record<{ run_id: string }>({ run_id: text });

export function decodeRunId(value: unknown): string {
  return decodeVersioned(runId, value, 'message').run_id;
}

/** Whether the data of a message on an unknown comm looks like an update of a run. */
export function isUpdate(value: unknown): boolean {
  return isObject(value) && value.kind === 'update' && 'run_id' in value && 'seq' in value;
}

interface SeriesHeader {
  key: string;
  rank: number;
  reset: boolean;
  count: number;
}

const update = record<Omit<RunUpdate, 'series'> & { series: SeriesHeader[] }>({
  run_id: text,
  seq: number,
  status: nullable(runStatus),
  series: list(record<SeriesHeader>({ key: text, rank: number, reset: flag, count: number })),
  tail: nullable(text),
  artifacts: nullable(list(artifact))
});

export function decodeUpdate(
  value: unknown,
  buffers: readonly (ArrayBuffer | ArrayBufferView)[]
): RunUpdate {
  const { series, ...rest } = decodeVersioned(update, value, 'update');
  return {
    ...rest,
    series: series.map(({ count, ...header }, index) => ({
      ...header,
      steps: float64(buffers[2 * index], count),
      values: float64(buffers[2 * index + 1], count)
    }))
  };
}

function float64(buffer: ArrayBuffer | ArrayBufferView | undefined, count: number): Float64Array {
  if (buffer?.byteLength !== count * Float64Array.BYTES_PER_ELEMENT) {
    throw new RecordError(
      `a buffer holds ${buffer?.byteLength ?? 0} bytes, not ${count} float64 numbers`
    );
  }
  const bytes = ArrayBuffer.isView(buffer)
    ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength)
    : new Uint8Array(buffer);
  // slice() copies: a buffer may begin at an offset where a Float64Array must not.
  return new Float64Array(bytes.slice().buffer);
}

const TYPED_ARRAYS = { f4: Float32Array, f8: Float64Array } as const;

const typedArray = record<{ dtype: 'f4' | 'f8'; bdata: string }>({
  dtype: oneOf(['f4', 'f8']),
  bdata: text
});

const plotlyNumbers: Decoder<Float64Array> = (value, at) => {
  if (Array.isArray(value)) {
    return Float64Array.from(list(nullable(number))(value, at), item => item ?? NaN);
  }
  const { dtype, bdata } = typedArray(value, at);
  const bytes = Uint8Array.from(atob(bdata), character => character.charCodeAt(0));
  return Float64Array.from(new TYPED_ARRAYS[dtype](bytes.buffer));
};

interface PlotlyTrace {
  meta: { key: string; rank: number };
  x: Float64Array;
  y: Float64Array;
}

const plotlyTrace = record<PlotlyTrace>({
  meta: record<PlotlyTrace['meta']>({ key: text, rank: number }),
  x: plotlyNumbers,
  y: plotlyNumbers
});

const plotlyFigure = record<{ data: PlotlyTrace[] }>({ data: list(plotlyTrace) });

/** The points of a saved chart. */
export function decodePlotly(value: unknown): SeriesDelta[] {
  return plotlyFigure(value, 'plotly').data.map(({ meta, x, y }) => ({
    ...meta,
    reset: true,
    steps: x,
    values: y
  }));
}
