// The difference between two texts, line by line.

export interface LineChange {
  kind: "same" | "added" | "removed";
  lines: string[];
}

/** Above this number of pairs of lines the middle of the texts counts as replaced, so that no comparison takes long. */
const MOST_PAIRS = 4_000_000;

/** Return the changes that lead from one text to the other, in order. */
export function compareLines(before: string, after: string): LineChange[] {
  const one = before.split("\n");
  const two = after.split("\n");
  let start = 0;
  while (start < one.length && start < two.length && one[start] === two[start]) start += 1;
  let ends = 0;
  while (ends < one.length - start && ends < two.length - start && one.at(-1 - ends) === two.at(-1 - ends)) ends += 1;
  const changes: LineChange[] = [];
  push(changes, "same", one.slice(0, start));
  middle(changes, one.slice(start, one.length - ends), two.slice(start, two.length - ends));
  push(changes, "same", one.slice(one.length - ends));
  return changes;
}

function middle(changes: LineChange[], one: string[], two: string[]): void {
  if (one.length * two.length > MOST_PAIRS) {
    push(changes, "removed", one);
    push(changes, "added", two);
    return;
  }
  const width = two.length + 1;
  const lengths = new Uint32Array((one.length + 1) * width);
  const at = (n: number, m: number): number => lengths[n * width + m] ?? 0;
  for (let n = one.length - 1; n >= 0; n -= 1) {
    for (let m = two.length - 1; m >= 0; m -= 1) {
      lengths[n * width + m] = one[n] === two[m] ? at(n + 1, m + 1) + 1 : Math.max(at(n + 1, m), at(n, m + 1));
    }
  }
  let n = 0;
  let m = 0;
  while (n < one.length || m < two.length) {
    if (n < one.length && m < two.length && one[n] === two[m]) {
      push(changes, "same", [one[n] ?? ""]);
      n += 1;
      m += 1;
    } else if (m >= two.length || (n < one.length && at(n + 1, m) >= at(n, m + 1))) {
      push(changes, "removed", [one[n] ?? ""]);
      n += 1;
    } else {
      push(changes, "added", [two[m] ?? ""]);
      m += 1;
    }
  }
}

function push(changes: LineChange[], kind: LineChange["kind"], lines: string[]): void {
  if (lines.length === 0) return;
  const last = changes.at(-1);
  if (last?.kind === kind) last.lines.push(...lines);
  else changes.push({ kind, lines: [...lines] });
}
