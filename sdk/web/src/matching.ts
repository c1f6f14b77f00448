// Which blocks have the words of a search.

import type { Row } from "./types";

/** Return whether a block has all words, in any of its fields. */
export function matches(row: Row, words: string[]): boolean {
  const text = `${row.type} ${row.ref} ${row.turn_id} ${JSON.stringify(row.body)} ${row.problem}`.toLowerCase();
  return words.every((word) => text.includes(word));
}
