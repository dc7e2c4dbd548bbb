/** Messages as the kernel writes them: the shared fixture where it exists, else the samples below. */

import { existsSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';

import type { RunListener, RunSource } from '../src/client/runSource';
import type { RunStatus, RunUpdate, SeriesDelta } from '../src/records';

const FIXTURE = resolve('..', 'tests', 'fixtures', 'records.json');

export const STATUS: RunStatus = {
  state: 'running',
  detail: '',
  name: 'digits',
  nodes: 2,
  workers: 2,
  gpus: 0,
  elapsed: 12.5,
  step: 2,
  total: 500,
  reports: 2,
  rate: 9.8,
  folder: '/data/stage/run',
  folder_browser_path: null,
  notes: ['4 ranks share 2 CPUs'],
  timeline: { ship: 0.01, schedule: 0.002, start: 0.013 },
  error: null,
  hang: null
};

export interface Fixture {
  bundle: { version: number; run_id: string; status: RunStatus };
  status: RunStatus;
  update: {
    data: Record<string, unknown> & {
      run_id: string;
      series: ({ count: number } & Record<string, unknown>)[];
    };
    buffers: string[];
  };
  plotly: { data: unknown[]; layout: unknown };
}

export function base64(numbers: Float64Array | Float32Array): string {
  return Buffer.from(numbers.buffer, numbers.byteOffset, numbers.byteLength).toString('base64');
}

const OWN: Fixture = {
  bundle: { version: 1, run_id: 'run-1', status: STATUS },
  status: STATUS,
  update: {
    data: {
      version: 1,
      kind: 'update',
      run_id: 'run-1',
      seq: 17,
      status: STATUS,
      series: [
        { key: 'loss', rank: 0, reset: true, count: 2 },
        { key: 'v[0]', rank: 0, reset: false, count: 0 }
      ],
      tail: 'epoch 1\n',
      artifacts: [{ path: 'model/net.pt', size: 1234, browser_path: null }]
    },
    buffers: [
      Float64Array.of(1, 2),
      Float64Array.of(0.5, NaN),
      new Float64Array(),
      new Float64Array()
    ].map(base64)
  },
  plotly: {
    data: [
      {
        meta: { key: 'loss', rank: 0 },
        x: { dtype: 'f8', bdata: base64(Float64Array.of(1, 2, 3)) },
        y: { dtype: 'f4', bdata: base64(Float32Array.of(0.5, NaN, 0.25)) }
      },
      { meta: { key: 'accuracy', rank: 0 }, x: [1, 2], y: [0.5, null] }
    ],
    layout: {}
  }
};

export const fixtures: [name: string, fixture: Fixture][] = [['own samples', OWN]];
if (existsSync(FIXTURE)) {
  fixtures.push([
    'tests/fixtures/records.json',
    JSON.parse(readFileSync(FIXTURE, 'utf8')) as Fixture
  ]);
}

/** A buffer as Jupyter hands it over: a view that begins where a Float64Array could not. */
export function wireBuffer(encoded: string): DataView {
  const bytes = Buffer.from(encoded, 'base64');
  const shifted = new Uint8Array(bytes.length + 3);
  shifted.set(bytes, 3);
  return new DataView(shifted.buffer, 3);
}

export function delta(key: string, steps: number[], values: number[], reset = false): SeriesDelta {
  return {
    key,
    rank: 0,
    reset,
    steps: Float64Array.from(steps),
    values: Float64Array.from(values)
  };
}

export function update(changes: Partial<RunUpdate> = {}): RunUpdate {
  return {
    run_id: 'run-1',
    seq: 0,
    status: null,
    series: [],
    tail: null,
    artifacts: null,
    ...changes
  };
}

/** A source that a test feeds by hand. */
export class FakeSource implements RunSource {
  constructor(readonly runId = 'run-1') {}

  readonly stops: boolean[] = [];
  isDisposed = false;

  attach(listener: RunListener): { isDisposed: boolean; dispose: () => void } {
    this._listeners.add(listener);
    return { isDisposed: false, dispose: () => this._listeners.delete(listener) };
  }

  requestStop(force: boolean): void {
    this.stops.push(force);
  }

  requestSnapshot(): void {
    throw new Error('nothing here asks for a snapshot');
  }

  dispose(): void {
    this.close('disconnected');
  }

  send(changes: Partial<RunUpdate>): void {
    this._listeners.forEach(listener => listener.updated?.(update(changes)));
  }

  close(reason: string): void {
    this.isDisposed = true;
    this._listeners.forEach(listener => listener.closed?.(reason));
  }

  private readonly _listeners = new Set<RunListener>();
}
