// Reading bodies of blocks. They come from any version of Loopline, so no field is taken for granted.

import type { Json, JsonObject, Row } from "./types";

/** Return a value as an object; an empty one if it is not. */
export function object(value: Json | undefined): JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}

export function list(value: Json | undefined): Json[] {
  return Array.isArray(value) ? value : [];
}

export function text(value: Json | undefined): string {
  return typeof value === "string" ? value : "";
}

export function number(value: Json | undefined): number {
  return typeof value === "number" ? value : 0;
}

/** Return a field of a block's body as text. */
export function field(row: Row, name: string): string {
  return text(object(row.body)[name]);
}

/** Return a JSON value on one line. */
export function compact(value: Json | undefined): string {
  return value === undefined ? "" : JSON.stringify(value);
}

/** Return the arguments of a call as `name: value` pairs on one line. */
export function argumentsLine(value: Json | undefined): string {
  return Object.entries(object(value))
    .map(([name, item]) => `${name}: ${typeof item === "string" ? item : compact(item)}`)
    .join(", ");
}

/** Return all characters of the text at a path of the body, if the row has only a part of it; else 0. */
export function charactersCut(row: Row, ...path: (string | number)[]): number {
  const cut = row.cut.find((item) => item.path.length === path.length && item.path.every((part, n) => part === path[n]));
  return cut?.characters ?? 0;
}
