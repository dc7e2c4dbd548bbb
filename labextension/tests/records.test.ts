import assert from 'node:assert/strict';
import { test } from 'node:test';

import { RecordError } from '../src/decode';
import { decodeBundle, decodeRunId, decodePlotly, decodeUpdate, isFinal } from '../src/records';
import { fixtures, STATUS, wireBuffer } from './samples';

for (const [name, { bundle, status, update, plotly }] of fixtures) {
  test(`${name}: a bundle decodes to the run and its status`, () => {
    const decoded = decodeBundle(bundle);
    assert.equal(decoded.run_id, bundle.run_id);
    assert.deepEqual(decodeBundle({ ...bundle, status }).status, status);
  });

  test(`${name}: an update decodes to the points in its buffers`, () => {
    const decoded = decodeUpdate(update.data, update.buffers.map(wireBuffer));
    assert.equal(decoded.run_id, update.data.run_id);
    assert.deepEqual(
      decoded.series.map(({ steps, values }) => [steps.length, values.length]),
      update.data.series.map(({ count }) => [count, count])
    );
  });

  test(`${name}: a saved chart decodes to a series for each trace`, () => {
    const series = decodePlotly(plotly);
    assert.equal(series.length, plotly.data.length);
    for (const { steps, values } of series) {
      assert.equal(steps.length, values.length);
    }
  });
}

const [[, own]] = fixtures as [(typeof fixtures)[number]];

test('numbers survive both encodings of a saved chart, and null becomes a gap', () => {
  const [loss, accuracy] = decodePlotly(own.plotly);
  assert.deepEqual([...(loss?.values ?? [])], [0.5, NaN, 0.25]);
  assert.deepEqual([...(accuracy?.values ?? [])], [0.5, NaN]);
});

test('another version is named before anything else is read', () => {
  assert.throws(() => decodeBundle({ version: 2 }), /version 2 of the run view's protocol/);
  assert.throws(() => decodeRunId({ version: 2, run_id: 7 }), /version 2/);
});

test('a malformed record says where it is wrong', () => {
  const status = { ...STATUS, notes: ['fine', 7] };
  assert.throws(() => decodeBundle({ ...own.bundle, status }), {
    name: 'RecordError',
    message: 'bundle.status.notes[1] is not a string'
  });
  assert.throws(
    () => decodeBundle({ ...own.bundle, status: { ...STATUS, state: 'odd' } }),
    RecordError
  );
});

test('a buffer of another length than announced is refused', () => {
  const buffers = own.update.buffers.map(wireBuffer);
  assert.throws(() => decodeUpdate(own.update.data, buffers.slice(1)), RecordError);
});

test('four states are final', () => {
  assert.ok(isFinal({ ...STATUS, state: 'lost' }));
  assert.ok(!isFinal({ ...STATUS, state: 'publishing' }));
});
