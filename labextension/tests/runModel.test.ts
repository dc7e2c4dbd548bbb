import assert from 'node:assert/strict';
import { test } from 'node:test';

import { groupByMetric } from '../src/models/metricGroups';
import { RunModel } from '../src/models/runModel';
import { Series } from '../src/models/series';
import { decodeBundle } from '../src/records';
import { delta, FakeSource, fixtures, STATUS } from './samples';

function live(): { source: FakeSource; model: RunModel } {
  const source = new FakeSource();
  return { source, model: RunModel.fromSource(source) };
}

function series(model: RunModel, key: string): Series {
  const found = [...model.series].find(one => one.key === key);
  assert.ok(found, `no series ${key}`);
  return found;
}

test('points are appended, and a reset replaces them', () => {
  const { source, model } = live();
  source.send({ series: [delta('loss', [1, 2], [0.5, 0.4])] });
  source.send({ series: [delta('loss', [3], [0.3])] });
  assert.deepEqual([...series(model, 'loss').steps], [1, 2, 3]);
  source.send({ series: [delta('loss', [9], [0.1], true)] });
  assert.deepEqual([...series(model, 'loss').values], [0.1]);
  assert.equal(series(model, 'loss').points, 1);
});

test('a series grows past its first capacity without loss', () => {
  const one = new Series('loss', 0);
  const numbers = Array.from({ length: 700 }, (_, index) => index);
  for (let start = 0; start < 7000; start += 700) {
    one.apply(delta('loss', numbers, numbers));
  }
  assert.equal(one.steps.length, 7000);
  assert.equal(one.values.at(-1), 699);
});

test('gaps and breaks between segments are kept but are no points', () => {
  const { source, model } = live();
  source.send({ series: [delta('loss', [1, 2, NaN, 1], [0.5, NaN, NaN, 0.4])] });
  assert.equal(series(model, 'loss').steps.length, 4);
  assert.equal(series(model, 'loss').points, 2);
  assert.equal(series(model, 'loss').last, 0.4);
});

test('null in an update leaves things as they were', () => {
  const { source, model } = live();
  const artifacts = [{ path: 'net.pt', size: 1, browser_path: null }];
  source.send({ status: STATUS, tail: 'epoch 1', artifacts });
  source.send({});
  assert.equal(model.status, STATUS);
  assert.equal(model.tail, 'epoch 1');
  assert.equal(model.artifacts, artifacts);
});

test('time goes on between two statuses, and ends with the run', () => {
  const { source, model } = live();
  source.send({ status: STATUS });
  assert.ok(model.elapsed(Date.now() + 5000) >= STATUS.elapsed + 5);
  source.send({ status: { ...STATUS, state: 'finished' } });
  assert.equal(model.elapsed(Date.now() + 5000), STATUS.elapsed);
});

test('the first stop is graceful, the second forces, a third does nothing', () => {
  const { source, model } = live();
  source.send({ status: STATUS });
  model.stop();
  assert.equal(model.stopRequest, 'graceful');
  model.stop();
  model.stop();
  assert.deepEqual(source.stops, [false, true]);
});

test('a run that is stopping already is forced by the first stop', () => {
  const { source, model } = live();
  source.send({ status: { ...STATUS, state: 'stopping' } });
  model.stop();
  assert.deepEqual(source.stops, [true]);
});

test('a run whose source ends is cut off unless it was final', () => {
  for (const [state, isCutOff] of [
    ['running', true],
    ['finished', false]
  ] as const) {
    const { source, model } = live();
    source.send({ status: { ...STATUS, state } });
    source.close('kernel gone');
    assert.equal(model.isCutOff, isCutOff);
    assert.equal(model.closedReason, 'kernel gone');
  }
});

test('the status of an output counts until the source has one, and at the end', () => {
  const { source, model } = live();
  model.offer({ run_id: 'run-1', status: { ...STATUS, state: 'waiting' } });
  assert.equal(model.status?.state, 'waiting');
  source.send({ status: STATUS });
  model.offer({ run_id: 'run-1', status: { ...STATUS, state: 'waiting' } });
  assert.equal(model.status.state, 'running');
  model.offer({ run_id: 'run-1', status: { ...STATUS, state: 'finished' } });
  assert.equal(model.isFinal, true);
});

for (const [name, { bundle, plotly }] of fixtures) {
  test(`${name}: a saved output is drawn without a source`, () => {
    const model = RunModel.fromBundle(decodeBundle(bundle), plotly);
    assert.equal(model.isActive, false);
    assert.equal([...model.series].length, plotly.data.length);
  });
}

test('the positions of a list metric share a chart, in their order', () => {
  const names = ['v[10]', 'loss', 'v[2]', 'v[x]'];
  const groups = groupByMetric(names.map(name => new Series(name, 0)));
  assert.deepEqual(
    groups.map(group => [group.name, group.lines.map(line => line.label)]),
    [
      ['v', ['[2]', '[10]']],
      ['loss', ['']],
      ['v[x]', ['']]
    ]
  );
});
