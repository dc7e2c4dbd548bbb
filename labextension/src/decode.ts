/** Small decoders that turn unknown JSON into typed values, or say where it is wrong. */

export class RecordError extends Error {
  override readonly name = 'RecordError';
}

/** `at` names the place of the value, for the message of the error. */
export type Decoder<T> = (value: unknown, at: string) => T;

function wrong(at: string, expected: string): never {
  throw new RecordError(`${at} is not ${expected}`);
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export const text: Decoder<string> = (value, at) =>
  typeof value === 'string' ? value : wrong(at, 'a string');

export const number: Decoder<number> = (value, at) =>
  typeof value === 'number' ? value : wrong(at, 'a number');

export const flag: Decoder<boolean> = (value, at) =>
  typeof value === 'boolean' ? value : wrong(at, 'a boolean');

export function nullable<T>(decode: Decoder<T>): Decoder<T | null> {
  return (value, at) => (value === null ? null : decode(value, at));
}

export function oneOf<T extends string>(options: readonly T[]): Decoder<T> {
  return (value, at) => options.find(option => option === value) ?? wrong(at, options.join(' | '));
}

export function list<T>(decode: Decoder<T>): Decoder<T[]> {
  return (value, at) =>
    Array.isArray(value)
      ? value.map((item: unknown, index) => decode(item, `${at}[${index}]`))
      : wrong(at, 'a list');
}

export function dictionary<T>(decode: Decoder<T>): Decoder<Record<string, T>> {
  return (value, at) =>
    isObject(value)
      ? Object.fromEntries(
          Object.entries(value).map(([key, item]) => [key, decode(item, `${at}.${key}`)])
        )
      : wrong(at, 'an object');
}

export function record<T extends object>(fields: {
  [K in keyof T]: Decoder<T[K]>;
}): Decoder<T> {
  return (value, at) => {
    if (!isObject(value)) {
      return wrong(at, 'an object');
    }
    const result: Partial<T> = {};
    for (const name in fields) {
      result[name] = fields[name](value[name], `${at}.${name}`);
    }
    return result as T;
  };
}
