// A conversation that is part of the file itself: the answers that a server would give, parsed when they are needed.

import { object, text } from "./bodies";
import type { Json, JsonObject, Prompt, PromptMessage, ReadItem, Row, Stored, StoredConversation, WindowAnswer } from "./types";

const ROWS = 500;
const MESSAGES = 200;

const parsed = new Map<string, unknown>();

/** Return whether the page is a file with a conversation. */
export const isFile: boolean = document.getElementById("part-conversation") !== null;

function part(name: string): unknown {
  if (!parsed.has(name)) {
    const element = document.getElementById(`part-${name}`);
    parsed.set(name, element ? JSON.parse(element.textContent) : null);
  }
  return parsed.get(name);
}

/** Return the conversation of the file. */
export function fileConversation(): StoredConversation | null {
  return isFile ? (part("conversation") as StoredConversation) : null;
}

/** Return the answer to a request from the file, or nothing if the file does not have it. */
export function answerOf(path: string, body: Json): unknown {
  const url = new URL(path, "https://file.invalid/");
  const end = url.pathname.split("/").slice(5).join("/");
  if (url.pathname === "/stored") return storedAnswer();
  if (end === "window") return windowAnswer(url.searchParams);
  if (end === "outline") return part("outline");
  if (end === "read") return { items: refsOf(body).map(readItem) };
  if (end === "prompt") return lastPrompt(Number(url.searchParams.get("turn") ?? 0));
  const round = /^turns\/turn_(\d+)\/rounds\/(\d+)\/prompt$/.exec(end);
  return round ? promptAnswer(Number(round[1]), Number(round[2]), Number(url.searchParams.get("seq") ?? 0)) : null;
}

function storedAnswer(): Stored | null {
  const item = fileConversation();
  if (item === null) return null;
  const { tenant, project, user } = item;
  return { writable: false, approver: false, bundles: [], tenant, project, user, total: 1, items: [item] };
}

function rowsPart(n: number): Row[] {
  return (part(`rows-${n}`) ?? []) as Row[];
}

function windowAnswer(query: URLSearchParams): WindowAnswer {
  const after = Number(query.get("after") ?? 0);
  const limit = Number(query.get("limit") ?? 200);
  const head = fileConversation()?.head ?? 0;
  const rows: Row[] = [];
  for (let seq = after + 1; seq <= Math.min(after + limit, head); seq += 1) {
    const row = rowsPart(Math.floor((seq - 1) / ROWS))[(seq - 1) % ROWS];
    if (row) rows.push(row);
  }
  return { conversation_id: fileConversation()?.conversation ?? "", head, rows };
}

interface StoredPrompt extends Omit<Prompt, "messages" | "system" | "tools"> {
  messages: number[];
  system: number;
  tools: number;
}

function promptAnswer(turn: number, round: number, seq: number): Prompt | null {
  for (let n = 0; n < 1_000_000; n += 1) {
    const prompts = part(`prompts-${n}`) as StoredPrompt[] | null;
    if (prompts === null) return null;
    const found = prompts.find(
      (prompt) => prompt.turn_id === `turn_${turn}` && prompt.round === round && (seq ? prompt.seq === seq : prompt.is_last),
    );
    if (found) return whole(found);
  }
  return null;
}

function lastPrompt(turn: number): Prompt | null {
  let last: StoredPrompt | null = null;
  for (let n = 0; ; n += 1) {
    const prompts = part(`prompts-${n}`) as StoredPrompt[] | null;
    if (prompts === null) return last === null ? null : whole(last);
    last = prompts.findLast((prompt) => turn === 0 || prompt.turn_id === `turn_${turn}`) ?? last;
  }
}

/** Return a prompt with its texts, which are in parts of their own. */
function whole(prompt: StoredPrompt): Prompt {
  return {
    ...prompt,
    system: message(prompt.system) as string,
    tools: message(prompt.tools) as string,
    messages: prompt.messages.map((number) => message(number) as PromptMessage),
  };
}

function message(number: number): unknown {
  const messages = part(`messages-${Math.floor(number / MESSAGES)}`) as unknown[] | null;
  return messages?.[number % MESSAGES];
}

function refsOf(body: Json): string[] {
  const refs = object(body)["refs"];
  return Array.isArray(refs) ? refs.map(text) : [];
}

/** Return the block that a ref names. A file has no more than its blocks, so other refs are missing. */
function readItem(ref: string): ReadItem {
  const head = fileConversation()?.head ?? 0;
  for (let n = 0; n * ROWS < head; n += 1) {
    const row = rowsPart(n).find((item) => item.ref === ref);
    if (row) return { ref, requested: ref, status: row.cut.length > 0 ? "cut" : "ok", text: textOf(row), title: row.type, mime: "text/plain", message: "" };
  }
  const message = "This file does not have what the ref names.";
  return { ref, requested: ref, status: "missing", text: "", title: "", mime: "", message };
}

function textOf(row: Row): string {
  const body: JsonObject = object(row.body);
  const source = object(body["source"]);
  return text(body["text"]) || text(source["text"]) || JSON.stringify(row.body, null, 2);
}
