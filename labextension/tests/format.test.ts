import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  formatDuration,
  formatNumber,
  formatSize,
  formatStep,
  formatWorld,
  stripEscapes
} from '../src/views/format';

test('numbers keep four digits, and whole numbers all of them', () => {
  assert.deepEqual([0, 2000, 0.123456, -12.5, 3.2e-7, 12345.678, 4e12].map(formatNumber), [
    '0',
    '2,000',
    '0.1235',
    '-12.5',
    '3.2e-7',
    '12345.7',
    '4e+12'
  ]);
});

test('durations read as a clock', () => {
  assert.deepEqual([0, 61.9, 3661].map(formatDuration), ['0:00', '1:01', '1:01:01']);
});

test('sizes read in the unit that fits', () => {
  assert.deepEqual([17, 1234, 98_700_000].map(formatSize), ['17 bytes', '1.23 kB', '98.7 MB']);
});

test('the world counts ranks, and GPUs where there are any', () => {
  assert.equal(formatWorld({ nodes: 2, workers: 2, gpus: 0 }), '2 nodes × 2 workers (4 ranks)');
  assert.equal(formatWorld({ nodes: 1, workers: 1, gpus: 1 }), '1 node × 1 worker (1 rank), 1 GPU');
});

test('a step is told with its total where that is known', () => {
  assert.equal(formatStep(1200, 5000), 'step 1,200 / 5,000');
  assert.equal(formatStep(7, null), 'step 7');
});

test('escape sequences of a terminal are taken out, and nothing else', () => {
  assert.equal(stripEscapes('\x1b[1;31mred\x1b[0m [1] \x1b]8;;x\x07link'), 'red [1] link');
});
