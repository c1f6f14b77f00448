// Requests for prompts and outlines of a conversation.

import { get, readPath } from "./api";
import type { Outline, OutlineTurn, Place, Prompt, RoundPosition } from "./types";

const TURNS = 200;

/** Return the prompt of a round. */
export function fetchPrompt(place: Place, at: RoundPosition): Promise<Prompt> {
  return get<Prompt>(readPath(place, `/turns/turn_${at.turn}/rounds/${at.round}/prompt`, { seq: at.seq }));
}

/** Return a window of the turns of a conversation, from the turn `first` on. */
export function fetchOutline(place: Place, first: number, limit = TURNS): Promise<Outline> {
  return get<Outline>(readPath(place, "/outline", { first, limit }));
}

/** Return the last round of a turn, or of the conversation if the turn is 0, that sent a request to a model, or nothing. */
export async function lastRound(place: Place, turn: number): Promise<RoundPosition | null> {
  if (turn > 0) return lastRoundOf((await fetchOutline(place, turn, 1)).turns);
  let end = (await fetchOutline(place, 1, 1)).total;
  while (end > 0) {
    const first = Math.max(1, end - TURNS + 1);
    const found = lastRoundOf((await fetchOutline(place, first, end - first + 1)).turns);
    if (found !== null) return found;
    end = first - 1;
  }
  return null;
}

function lastRoundOf(turns: OutlineTurn[]): RoundPosition | null {
  for (const turn of turns.toReversed()) {
    const round = turn.rounds.findLast((item) => item.model !== "");
    if (round) return { turn: turnNumber(turn.turn_id), round: round.round, seq: 0 };
  }
  return null;
}

/** Return the number of a turn with an id such as `turn_3`. */
export function turnNumber(id: string): number {
  return Number(id.slice(5));
}
