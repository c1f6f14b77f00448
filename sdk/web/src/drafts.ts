// Messages that were begun and not sent, by conversation.

import { signal } from "@preact/signals";
import type { Place } from "./types";

const drafts = signal<Record<string, string>>({});

function keyOf(place: Place): string {
  return JSON.stringify([place.tenant, place.project, place.user, place.conversation]);
}

/** Return the message that was begun in a conversation. */
export function draftOf(place: Place): string {
  return drafts.value[keyOf(place)] ?? "";
}

/** Keep a message that was begun in a conversation. */
export function draft(place: Place, text: string): void {
  drafts.value = { ...drafts.value, [keyOf(place)]: text };
}
