import { element, setText } from './dom';
import { formatNumber } from './format';

const PARTS = ['ship', 'schedule', 'start', 'import', 'rendezvous', 'first step'];

/** Where the seconds of the launch went. */
export class LaunchLine {
  constructor() {
    this.node.title =
      'ship: pack and send the code and data · schedule: wait for resources · start: the rank ' +
      'processes · import: unpack code and data · rendezvous: all ranks meet · first step: until the first report';
  }

  update(timeline: Readonly<Record<string, number>>): void {
    const parts = PARTS.flatMap(part => {
      const seconds = timeline[part];
      return seconds === undefined ? [] : [`${part} ${formatNumber(rounded(seconds))} s`];
    });
    // While the ranks start each new part would move the page below it.
    const isWhole = timeline.rendezvous !== undefined;
    setText(this.node, isWhole ? `Launch: ${parts.join(' · ')}` : '');
  }

  readonly node = element('div', 'launch');
}

/** Milliseconds are what a reader can use. */
function rounded(seconds: number): number {
  return Math.round(seconds * 1000) / 1000;
}
