/** How numbers read in the view. */

const UNITS = ['bytes', 'kB', 'MB', 'GB', 'TB'] as const;

export function formatNumber(value: number): string {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) {
    return value.toLocaleString('en-US');
  }
  return size >= 1e6 || size < 1e-4
    ? Number(value.toPrecision(3)).toExponential()
    : String(Number(value.toPrecision(size < 1e4 ? 4 : 6)));
}

export function formatDuration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes, rest] = [
    Math.floor(whole / 3600),
    Math.floor(whole / 60) % 60,
    whole % 60
  ];
  const padded = (value: number): string => String(value).padStart(2, '0');
  return hours > 0 ? `${hours}:${padded(minutes)}:${padded(rest)}` : `${minutes}:${padded(rest)}`;
}

export function formatSize(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toPrecision(3)} ${UNITS[unit] ?? ''}`;
}

export function plural(count: number, noun: string): string {
  return `${formatNumber(count)} ${noun}${count === 1 ? '' : 's'}`;
}

/** "2 nodes × 2 workers (4 ranks), 4 GPUs"; `workers` counts per node, `gpus` per worker. */
export function formatWorld({
  nodes,
  workers,
  gpus
}: {
  nodes: number;
  workers: number;
  gpus: number;
}): string {
  const ranks = nodes * workers;
  const world = `${plural(nodes, 'node')} × ${plural(workers, 'worker')} (${plural(ranks, 'rank')})`;
  return gpus > 0 ? `${world}, ${plural(ranks * gpus, 'GPU')}` : world;
}

export function formatStep(step: number, total: number | null): string {
  return total === null
    ? `step ${formatNumber(step)}`
    : `step ${formatNumber(step)} / ${formatNumber(total)}`;
}

/** Output of a terminal without its escape sequences. */
export function stripEscapes(output: string): string {
  return output.replace(
    /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g,
    ''
  );
}
