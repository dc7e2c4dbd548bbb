import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import { KernelSource } from '../src/client/kernelSource';
import { Sessions } from '../src/client/sessions';
import { SourceRegistry } from '../src/client/sourceRegistry';
import { LiveRuns } from '../src/models/liveRuns';
import type { RunModel } from '../src/models/runModel';
import type { RunUpdate } from '../src/records';
import { FakeSource, STATUS, update } from './samples';

class FakeComm {
  constructor(readonly commId = 'comm-1') {}

  readonly sent: unknown[] = [];
  commsOverSubshells?: string;
  subshellStarted?: Promise<void>;
  isDisposed = false;
  onMsg: (message: KernelMessage.ICommMsgMsg) => void = () => undefined;
  onClose: () => void = () => undefined;

  send(data: unknown): void {
    this.sent.push(data);
  }
}

class FakeKernel {
  readonly handleComms = true;
  readonly info = Promise.resolve({});
  readonly isDisposed = false;
  supportsSubshells = true;
  readonly comms = new Map<string, FakeComm>();
  readonly statusChanged = new Signal<this, Kernel.Status>(this);
  readonly disposed = new Signal<this, void>(this);
  readonly iopubMessage = new Signal<this, KernelMessage.IMessage>(this);
  openIds: string[] = [];
  open: (comm: FakeComm, message: { content: { data: unknown } }) => void = () => undefined;

  registerCommTarget(_: string, open: FakeKernel['open']): void {
    this.open = open;
  }

  requestCommInfo(): Promise<unknown> {
    const comms = Object.fromEntries(this.openIds.map(id => [id, {}]));
    return Promise.resolve({ content: { status: 'ok', comms } });
  }

  createComm(_: string, id: string): FakeComm {
    const comm = new FakeComm(id);
    this.comms.set(id, comm);
    return comm;
  }
}

function message(changes: Partial<RunUpdate>, version = 1): KernelMessage.ICommMsgMsg {
  return {
    header: { msg_type: 'comm_msg' },
    content: { comm_id: 'comm-1', data: { version, kind: 'update', ...update(changes) } }
  } as unknown as KernelMessage.ICommMsgMsg;
}

function kernelSource(): { comm: FakeComm; kernel: FakeKernel; source: KernelSource } {
  const [comm, kernel] = [new FakeComm(), new FakeKernel()];
  const source = new KernelSource(
    'run-1',
    comm as unknown as Kernel.IComm,
    kernel as unknown as Kernel.IKernelConnection
  );
  return { comm, kernel, source };
}

function watched(kernel: FakeKernel): { registry: SourceRegistry; runs: LiveRuns } {
  const registry = new SourceRegistry();
  const runs = new LiveRuns(registry);
  const session = { kernelChanged: new Signal({}), session: { kernel } };
  new Sessions(registry).watch(session as unknown as ISessionContext);
  return { registry, runs };
}

test('a run that appears before its output is found with all it has sent', () => {
  const registry = new SourceRegistry();
  const runs = new LiveRuns(registry);
  const source = new FakeSource();
  registry.add(source);
  source.send({ status: STATUS });
  assert.equal(runs.get('run-1')?.status, STATUS);
});

test('a run that appears after its output is announced', () => {
  const registry = new SourceRegistry();
  const runs = new LiveRuns(registry);
  const announced: RunModel[] = [];
  runs.added.connect((_, run) => announced.push(run));
  assert.equal(runs.get('run-1'), undefined);
  registry.add(new FakeSource());
  assert.deepEqual(announced, [runs.get('run-1')]);
});

test('a source that closes is forgotten, and its model keeps what it knew', () => {
  const registry = new SourceRegistry();
  const runs = new LiveRuns(registry);
  const source = new FakeSource();
  registry.add(source);
  const run = runs.get('run-1');
  source.send({ status: STATUS });
  source.close('kernel gone');
  assert.equal(registry.get('run-1'), undefined);
  assert.equal(runs.get('run-1'), undefined);
  assert.equal(run?.status, STATUS);
});

test('a newer source of the same run takes the place of the older', () => {
  const registry = new SourceRegistry();
  const runs = new LiveRuns(registry);
  const [older, newer] = [new FakeSource(), new FakeSource()];
  registry.add(older);
  const first = runs.get('run-1');
  registry.add(newer);
  assert.ok(older.isDisposed);
  assert.equal(registry.get('run-1'), newer);
  assert.notEqual(runs.get('run-1'), first);
  assert.ok(runs.get('run-1')?.isActive);
});

test('a gap in the sequence asks for one snapshot', async () => {
  const { comm } = kernelSource();
  for (const seq of [3, 4, 7, 8]) {
    comm.onMsg(message({ seq }));
  }
  await new Promise(setImmediate);
  assert.deepEqual(comm.sent, [{ kind: 'snapshot' }]);
});

test('stop requests go over the comm', async () => {
  const { comm, source } = kernelSource();
  source.requestStop(false);
  source.requestStop(true);
  await new Promise(setImmediate);
  assert.deepEqual(comm.sent, [
    { kind: 'stop', force: false },
    { kind: 'stop', force: true }
  ]);
});

test('nothing is sent before the subshell that handles it beside a running cell', async () => {
  const { comm, source } = kernelSource();
  let started = (): void => undefined;
  comm.commsOverSubshells = 'perCommTarget';
  comm.subshellStarted = new Promise(resolve => (started = resolve));
  source.requestSnapshot();
  source.requestStop(false);
  await new Promise(setImmediate);
  assert.deepEqual(comm.sent, []);
  started();
  await new Promise(setImmediate);
  assert.deepEqual(comm.sent, [{ kind: 'snapshot' }, { kind: 'stop', force: false }]);
});

test('a kernel without subshells is sent to at once', async () => {
  const { comm, kernel, source } = kernelSource();
  comm.commsOverSubshells = 'perCommTarget';
  comm.subshellStarted = new Promise(() => undefined);
  kernel.supportsSubshells = false;
  source.requestStop(false);
  await new Promise(setImmediate);
  assert.deepEqual(comm.sent, [{ kind: 'stop', force: false }]);
});

test('a restart of the kernel and a foreign version close the source with the reason', () => {
  for (const [end, reason] of [
    [
      ({ kernel }) => {
        kernel.statusChanged.emit('restarting');
      },
      /^kernel gone$/
    ],
    [
      ({ kernel }) => {
        kernel.disposed.emit();
      },
      /^kernel gone$/
    ],
    [
      ({ comm }) => {
        comm.onMsg(message({}, 2));
      },
      /version 2/
    ]
  ] as [(parts: ReturnType<typeof kernelSource>) => void, RegExp][]) {
    const parts = kernelSource();
    const reasons: string[] = [];
    parts.source.attach({ closed: text => reasons.push(text) });
    end(parts);
    end(parts);
    assert.equal(reasons.length, 1);
    assert.match(reasons[0] ?? '', reason);
  }
});

test('a comm that the kernel opens becomes a run', () => {
  const kernel = new FakeKernel();
  const { registry } = watched(kernel);
  kernel.open(new FakeComm(), { content: { data: { version: 1, run_id: 'run-1' } } });
  assert.ok(registry.get('run-1'));
});

test('after a reload a busy run is found by its updates, and asked for the rest', async () => {
  const kernel = new FakeKernel();
  const { runs } = watched(kernel);
  kernel.iopubMessage.emit(message({ seq: 40, status: STATUS }));
  assert.equal(runs.get('run-1')?.status?.state, 'running');
  await new Promise(setImmediate);
  assert.deepEqual(kernel.comms.get('comm-1')?.sent, [{ kind: 'snapshot' }]);
});

test('what a kernel sent before its restart brings no run back', () => {
  const kernel = new FakeKernel();
  const { registry } = watched(kernel);
  kernel.open(new FakeComm(), { content: { data: { version: 1, run_id: 'run-1' } } });
  kernel.statusChanged.emit('restarting');
  kernel.iopubMessage.emit(message({ seq: 9 }));
  assert.equal(registry.get('run-1'), undefined);
});

test('after a reload a quiet run is asked for', async () => {
  const kernel = new FakeKernel();
  kernel.openIds = ['comm-1'];
  const { runs } = watched(kernel);
  await new Promise(setImmediate);
  const comm = kernel.comms.get('comm-1');
  assert.deepEqual(comm?.sent, [{ kind: 'snapshot' }]);
  comm.onMsg(message({ seq: 5, status: STATUS }));
  assert.ok(runs.get('run-1')?.isActive);
});
