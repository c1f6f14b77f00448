// Requests for prompts and outlines of a conversation.

import { get, readPath } from "./api";
import type { Outline, Place, Prompt, RoundPosition } from "./types";

const TURNS = 200;

/** Return the prompt of a round. */
export function fetchPrompt(place: Place, at: RoundPosition): Promise<Prompt> {
  return get<Prompt>(readPath(place, `/turns/turn_${at.turn}/rounds/${at.round}/prompt`, { seq: at.seq }));
}

/** Return a window of the turns of a conversation, from the turn `first` on. */
export function fetchOutline(place: Place, first: number, limit = TURNS): Promise<Outline> {
  return get<Outline>(readPath(place, "/outline", { first, limit }));
}

/** Return the last prompt of a turn, or of the conversation if the turn is 0. */
export function fetchLastPrompt(place: Place, turn: number): Promise<Prompt> {
  return get<Prompt>(readPath(place, "/prompt", { turn }));
}
