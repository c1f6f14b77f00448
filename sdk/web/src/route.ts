// Where the reader is: the part of the address behind `#`.

import { signal } from "@preact/signals";
import type { Place } from "./types";

export type ViewName = "chat" | "overview" | "timeline" | "prompt";
export const VIEWS: readonly ViewName[] = ["chat", "overview", "timeline", "prompt"];

/** Where the reader is. Without a place no conversation is chosen. */
export interface Route {
  place: Place | null;
  /** Whether the turns that are not done are shown. */
  isWork: boolean;
  view: ViewName;
  rest: string[];
}

export const route = signal<Route>(parse(location.hash));

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

function parse(hash: string): Route {
  const [, kind, ...parts] = hash.split("/").map(decode);
  if (kind !== "c" || parts.length < 4) return { place: null, isWork: kind === "work", view: "chat", rest: [] };
  const [tenant = "", project = "", user = "", conversation = "", name = "chat", ...rest] = parts;
  const view = VIEWS.find((known) => known === name) ?? "chat";
  return { place: { tenant, project, user, conversation }, isWork: false, view, rest };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Return the address of a view of a conversation. */
export function linkTo(place: Place, view: ViewName, ...rest: (string | number)[]): string {
  const parts = [place.tenant, place.project, place.user, place.conversation, view, ...rest];
  return `#/c/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

/** Return whether two places are the same conversation. */
export function samePlace(one: Place | null, other: Place | null): boolean {
  return (
    one !== null &&
    other !== null &&
    one.tenant === other.tenant &&
    one.project === other.project &&
    one.user === other.user &&
    one.conversation === other.conversation
  );
}
