// The answers to a call that waits: who has approved it, with which arguments, and whether enough people have.

import { object } from "./bodies";
import type { Json, JsonObject } from "./types";

/** An answer, and the name of the person who gave it; empty for the user of the conversation. */
export interface GivenAnswer {
  value: Json;
  by: string;
}

/** What the answers since the question say. `edited` are the arguments that those in `approvedBy` have approved, if somebody edited them. */
export interface Standing {
  isDecided: boolean;
  approvedBy: string[];
  edited: JsonObject | null;
}

const YES = new Set(["yes", "y", "true", "ok", "approve", "approved", "allow"]);

function isApproval(value: Json): boolean {
  if (typeof value === "string") return YES.has(value.trim().toLowerCase());
  return value === true || object(value)["approved"] === true;
}

function editedArguments(value: Json): JsonObject | null {
  const changed = object(value)["arguments"];
  return changed === undefined || !isApproval(value) ? null : object(changed);
}

/** Return what the answers to a call say, oldest first. The server decides by the same rules. */
export function standingOf(answers: readonly GivenAnswer[], people: number): Standing {
  let approvals: GivenAnswer[] = [];
  let edited: JsonObject | null = null;
  for (const answer of answers) {
    if (people <= 1 || !isApproval(answer.value)) return { isDecided: true, approvedBy: [], edited };
    const changed = editedArguments(answer.value);
    if (changed !== null && !isSame(changed, edited)) {
      edited = changed;
      approvals = [];
    }
    if (!approvals.some((approval) => approval.by === answer.by)) approvals.push(answer);
    if (approvals.length >= people) return { isDecided: true, approvedBy: approvals.map((approval) => approval.by), edited };
  }
  return { isDecided: false, approvedBy: approvals.map((approval) => approval.by), edited };
}

function isSame(one: JsonObject, other: JsonObject | null): boolean {
  return other !== null && sorted(one) === sorted(other);
}

function sorted(value: Json): string {
  return JSON.stringify(value, (_, item: Json) =>
    typeof item === "object" && item !== null && !Array.isArray(item) ? Object.fromEntries(Object.entries(item).sort()) : item,
  );
}
