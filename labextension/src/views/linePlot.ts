import type uPlot from 'uplot';

import type { MetricLine } from '../models/metricGroups';
import { formatNumber } from './format';

const FONT_SIZE = 11;
const LONE_POINT_RADIUS = 2;
const PALETTE_SIZE = 8;
// The member exists in uPlot's typings only, and a type import can not name it as a value.
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const FACETED: uPlot.Mode = 2;

export interface Size {
  width: number;
  height: number;
}

export interface Extent {
  min: number;
  max: number;
}

/** The CSS variable that holds the colour of a line. */
export function lineColour(index: number): string {
  return `--jp-torchdist-line-${index % PALETTE_SIZE}`;
}

/** Steps do not always rise (a restart begins a segment), so the data is faceted: each line has its own x. */
export function plotData(lines: readonly MetricLine[]): uPlot.AlignedData {
  const facets = lines.map(({ series }) => [series.steps, series.values]);
  // The typings of uPlot know aligned data only.
  return [null, ...facets] as unknown as uPlot.AlignedData;
}

/** The smallest and largest step or value of points that are no gaps; null without any. */
export function extent(lines: readonly MetricLine[], of: 'steps' | 'values'): Extent | null {
  let [min, max] = [Infinity, -Infinity];
  for (const { series } of lines) {
    const [numbers, values] = [series[of], series.values];
    for (let index = 0; index < numbers.length; index++) {
      const number = numbers[index] ?? NaN;
      if (!Number.isNaN(values[index])) {
        min = Math.min(min, number);
        max = Math.max(max, number);
      }
    }
  }
  return min <= max ? { min, max } : null;
}

/** The point nearest to a step; of several, the one reported last. */
export function nearestPoint({ series }: MetricLine, step: number): number | null {
  const { steps, values } = series;
  let nearest: number | null = null;
  let distance = Infinity;
  for (let index = 0; index < steps.length; index++) {
    const candidate = Math.abs((steps[index] ?? NaN) - step);
    if (candidate <= distance && !Number.isNaN(values[index])) {
      nearest = index;
      distance = candidate;
    }
  }
  return nearest;
}

export function createPlot(
  UPlot: typeof uPlot,
  target: HTMLElement,
  size: Size,
  lines: readonly MetricLine[],
  onHover: (points: readonly (number | null)[]) => void
): uPlot {
  const css = getComputedStyle(target);
  const colour = (name: string): string => css.getPropertyValue(name).trim();
  const colours = lines.map((_, index) => colour(lineColour(index)));
  const axis: uPlot.Axis = {
    stroke: colour('--jp-ui-font-color1'),
    font: `${FONT_SIZE}px ${css.fontFamily}`,
    grid: { stroke: colour('--jp-border-color2'), width: 1 },
    ticks: { show: false },
    values: (_, splits) => splits.map(formatNumber)
  };
  const options: uPlot.Options = {
    ...size,
    mode: FACETED,
    legend: { show: false },
    padding: [8, 12, 0, 0],
    scales: {
      x: { time: false, range: () => padded(extent(lines, 'steps'), 0) },
      y: { range: () => padded(extent(lines, 'values'), 0.06) }
    },
    axes: [
      { ...axis, size: 24, gap: 4, space: 48 },
      { ...axis, size: labelWidth, gap: 4, space: 28 }
    ],
    series: [
      {},
      ...lines.map((_, index) => ({
        facets: [
          { scale: 'x', auto: true },
          { scale: 'y', auto: true }
        ],
        stroke: colours[index] ?? '',
        width: 1.5,
        points: { show: false },
        paths: segmentPaths
      }))
    ],
    cursor: {
      y: false,
      drag: { x: false, y: false, setScale: false },
      dataIdx: (plot, index) => {
        const line = lines[index - 1];
        return line ? nearestPoint(line, plot.posToVal(plot.cursor.left ?? 0, 'x')) : null;
      },
      points: {
        size: 7,
        width: 0,
        fill: (_, index) => colours[index - 1] ?? ''
      }
    },
    hooks: {
      setLegend: [
        plot => {
          onHover((plot.cursor.idxs ?? []).slice(1).map(index => index ?? null));
        }
      ]
    }
  };
  return new UPlot(options, plotData(lines), target);
}

/** A range with a margin on both sides; a single number gets a range of its own. */
function padded(range: Extent | null, margin: number): [number, number] {
  if (range === null) {
    return [0, 1];
  }
  const { min, max } = range;
  if (min === max) {
    const around = Math.abs(min) / 10 || 1;
    return [min - around, max + around];
  }
  const space = (max - min) * margin;
  return [min - space, max + space];
}

function labelWidth(_: uPlot, labels: string[] | null): number {
  const longest = Math.max(0, ...(labels ?? []).map(label => label.length));
  return 12 + longest * FONT_SIZE * 0.6;
}

/** Lines in the order of the points, broken at gaps; a point between two gaps becomes a ring. */
const segmentPaths: uPlot.Series.PathBuilder = (plot, seriesIndex) => {
  const [steps, values] = plot.data[seriesIndex] as unknown as [Float64Array, Float64Array];
  const stroke = new Path2D();
  const radius = LONE_POINT_RADIUS * devicePixelRatio;
  const isGap = (index: number): boolean => Number.isNaN(values[index] ?? NaN);
  for (let index = 0; index < values.length; index++) {
    if (isGap(index)) {
      continue;
    }
    const x = plot.valToPos(steps[index] ?? NaN, 'x', true);
    const y = plot.valToPos(values[index] ?? NaN, 'y', true);
    if (!isGap(index - 1)) {
      stroke.lineTo(x, y);
    } else if (isGap(index + 1)) {
      stroke.moveTo(x + radius, y);
      stroke.arc(x, y, radius, 0, 2 * Math.PI);
    } else {
      stroke.moveTo(x, y);
    }
  }
  return { stroke };
};
