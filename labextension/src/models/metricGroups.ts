import type { Series } from './series';

/** One line of a chart. */
export interface MetricLine {
  /** What tells it from the other lines of its chart; empty where it is the only one. */
  label: string;
  series: Series;
}

/** The series that share a chart: a metric, or all positions of a list metric. */
export interface MetricGroup {
  name: string;
  lines: MetricLine[];
}

const POSITION = /^(.*)\[(\d+)\]$/s;

/** Groups series into charts, in the order in which their metrics appeared. */
export function groupByMetric(series: Iterable<Series>): MetricGroup[] {
  const groups = new Map<string, { position: number | null; series: Series }[]>();
  for (const one of series) {
    const match = POSITION.exec(one.key);
    const name = match?.[1] ?? one.key;
    const position = match ? Number(match[2]) : null;
    const members = groups.get(name) ?? [];
    members.push({ position, series: one });
    groups.set(name, members);
  }
  return Array.from(groups, ([name, members]) => {
    const severalRanks = new Set(members.map(member => member.series.rank)).size > 1;
    members.sort(
      (a, b) => (a.position ?? -1) - (b.position ?? -1) || a.series.rank - b.series.rank
    );
    return {
      name,
      lines: members.map(({ position, series }) => ({
        series,
        label: [position === null ? '' : `[${position}]`, severalRanks ? `rank ${series.rank}` : '']
          .join(' ')
          .trim()
      }))
    };
  });
}
