// Requests to the server. Paths are relative to the page, so the server may be mounted anywhere.

import { answerOf, isFile } from "./embedded";
import type { Json, LiveEvent, Place } from "./types";

const KEY = "loopline-key";

/** An answer of the server that is not a success: its status, and its words for the reader. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The server could not be reached. */
export class Lost extends Error {}

export function savedKey(): string {
  return sessionStorage.getItem(KEY) ?? "";
}

export function saveKey(key: string): void {
  sessionStorage.setItem(KEY, key);
}

function address(path: string): URL {
  return new URL(`../${path}`, document.baseURI);
}

function headers(extra: Record<string, string>): Record<string, string> {
  const key = savedKey();
  return key ? { ...extra, Authorization: `Bearer ${key}` } : extra;
}

async function problemOf(response: Response): Promise<Refusal> {
  let text = `${response.status} ${response.statusText}`;
  try {
    const problem: unknown = await response.json();
    if (typeof problem === "object" && problem !== null && "detail" in problem) {
      text = String(problem.detail);
    }
  } catch {
    // The answer is not JSON: the status says enough.
  }
  return new Refusal(response.status, text);
}

async function send(path: string, options: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address(path), { credentials: "omit", redirect: "error", ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Lost("The server cannot be reached.");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

function fromFile(path: string, body: Json): unknown {
  const answer = answerOf(path, body);
  if (answer === null) throw new Refusal(404, "This file does not have it.");
  return answer;
}

/** Return the parsed answer of a GET request. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  if (isFile) return fromFile(path, null) as T;
  const response = await send(path, { headers: headers({}), ...(signal ? { signal } : {}) });
  return (await response.json()) as T;
}

/** Return the bytes of an answer. */
export async function getBytes(path: string): Promise<ArrayBuffer> {
  if (isFile) throw new Refusal(404, "This file does not have it.");
  return (await send(path, { headers: headers({}) })).arrayBuffer();
}

/** Return the parsed answer of a POST request with a JSON body. */
export async function post<T>(path: string, body: Json): Promise<T> {
  if (isFile) return fromFile(path, body) as T;
  const response = await send(path, {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
  });
  return (await response.json()) as T;
}

/** Return the parsed answer of a POST request without a body and without the key. */
export async function postHeaders<T>(path: string, extra: Record<string, string>): Promise<T> {
  return (await (await send(path, { method: "POST", headers: extra })).json()) as T;
}

/** Return the parsed answer of a POST request with a form. */
export async function postForm<T>(path: string, form: FormData): Promise<T> {
  const response = await send(path, { method: "POST", headers: headers({}), body: form });
  return (await response.json()) as T;
}

/** Return the path of a conversation, with the part behind it. */
export function pathOf(place: Place, rest = ""): string {
  const names = [place.tenant, place.project, place.conversation].map(encodeURIComponent);
  return `conversations/${names.join("/")}${rest}`;
}

/** Return a path with a query: the names with their values, and the user whose conversation is read. */
export function readPath(place: Place, rest: string, query: Record<string, string | number> = {}): string {
  const parameters = new URLSearchParams({ user_id: place.user });
  for (const [name, value] of Object.entries(query)) parameters.set(name, String(value));
  return `${pathOf(place, rest)}?${parameters.toString()}`;
}

/** Yield the events of a conversation behind a position, until the stream ends or the signal aborts it. */
export async function* listen(path: string, signal: AbortSignal): AsyncGenerator<LiveEvent> {
  const response = await send(path, {
    headers: headers({ Accept: "text/event-stream" }),
    signal,
  });
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop() ?? "";
    for (const frame of frames) {
      const event = parseFrame(frame);
      if (event !== null) yield event;
    }
  }
}

function parseFrame(frame: string): LiveEvent | null {
  let id = "";
  let event = "message";
  const data: string[] = [];
  for (const line of frame.split("\n")) {
    if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  if (data.length === 0) return null;
  return { id, event, data: JSON.parse(data.join("\n")) as LiveEvent["data"] };
}
