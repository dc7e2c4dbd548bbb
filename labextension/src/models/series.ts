import type { SeriesDelta } from '../records';

const FIRST_CAPACITY = 256;

/** The points of one metric of one rank; NaN values are gaps. */
export class Series {
  constructor(
    readonly key: string,
    readonly rank: number
  ) {}

  /** Steps in the order of the reports: they fall where a segment begins. */
  get steps(): Float64Array {
    return this._steps.subarray(0, this._length);
  }

  get values(): Float64Array {
    return this._values.subarray(0, this._length);
  }

  /** How many points are no gaps. */
  get points(): number {
    return this._points;
  }

  /** The newest value that is no gap. */
  get last(): number | null {
    return this._last;
  }

  apply({ reset, steps, values }: SeriesDelta): void {
    if (reset) {
      this._length = this._points = 0;
      this._last = null;
    }
    this._reserve(this._length + steps.length);
    this._steps.set(steps, this._length);
    this._values.set(values, this._length);
    this._length += steps.length;
    for (const value of values) {
      if (!Number.isNaN(value)) {
        this._points += 1;
        this._last = value;
      }
    }
  }

  private _reserve(length: number): void {
    let capacity = this._steps.length;
    if (length <= capacity) {
      return;
    }
    while (capacity < length) {
      capacity *= 2;
    }
    this._steps = grown(this._steps, capacity);
    this._values = grown(this._values, capacity);
  }

  private _steps = new Float64Array(FIRST_CAPACITY);
  private _values = new Float64Array(FIRST_CAPACITY);
  private _length = 0;
  private _points = 0;
  private _last: number | null = null;
}

function grown(numbers: Float64Array, capacity: number): Float64Array<ArrayBuffer> {
  const larger = new Float64Array(capacity);
  larger.set(numbers);
  return larger;
}
