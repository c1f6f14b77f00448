// What all views share: the conversations of the store, and whether the reader must sign in.

import { signal } from "@preact/signals";
import { get, Refusal } from "./api";
import { isFile } from "./embedded";
import { troubleOf, type Trouble } from "./blocks";
import type { Place, Stored } from "./types";

export const stored = signal<Stored | null>(null);
export const needsKey = signal(false);
export const trouble = signal<Trouble | null>(null);

/** Return whether the reader may send messages to a conversation. */
export function isWritable(place: Place): boolean {
  const answer = stored.value;
  return answer !== null && answer.writable && answer.user === place.user && answer.tenant === place.tenant && answer.project === place.project;
}

/** Return whether the reader may give a further approval in a conversation of another user. */
export function isApprover(place: Place): boolean {
  const answer = stored.value;
  return answer !== null && answer.approver && answer.user !== place.user && answer.tenant === place.tenant && answer.project === place.project;
}

const MILLISECONDS = 5_000;

/** Fetch the conversations of the store. */
export async function refreshStored(): Promise<void> {
  try {
    const answer = await get<Stored>("stored");
    if (JSON.stringify(answer) !== JSON.stringify(stored.value)) stored.value = answer;
    needsKey.value = false;
    trouble.value = null;
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) needsKey.value = true;
    else trouble.value = troubleOf(error);
  }
}

/** Fetch the conversations now, and then again and again while the page can be seen. */
export function watchStored(): void {
  void refreshStored();
  if (isFile) return;
  window.setInterval(() => {
    if (document.visibilityState === "visible" && !needsKey.value) void refreshStored();
  }, MILLISECONDS);
}
