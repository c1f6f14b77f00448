// The parts of a prompt: what each says, what it costs, and how it differs from the same part of another prompt.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { list, object, text as textOf } from "../bodies";
import { compareLines, type LineChange } from "../diff";
import { count } from "../format";
import { openRef, RefLink, RefText } from "../refs";
import type { Json, PartState, Prompt } from "../types";

/** A part of a prompt as the page shows it. */
export interface Part {
  name: string;
  ref: string;
  text: string;
  tokens: number;
  state: PartState | "tail";
  stable: boolean;
  cached: boolean;
  point: string;
}

export const STATES: Record<Part["state"], string> = {
  full: "",
  shortened: "shortened",
  hidden: "hidden",
  cleared: "cleared",
  summary: "summary",
  tail: "tail",
};

/** Return the parts of a prompt in the order in which they are sent. */
export function partsOf(prompt: Prompt): Part[] {
  const points = new Map(prompt.cache_points.map((point) => [point.messages, point.name]));
  const parts: Part[] = [];
  const add = (name: string, text: string, tokens: number, more: Partial<Part> = {}) => {
    if (text !== "") {
      parts.push({ name, ref: "", text, tokens, state: "full", stable: true, cached: false, point: "", ...more });
    }
  };
  add("tools", prompt.tools, prompt.tools_tokens);
  add("system", prompt.system, prompt.system_tokens);
  const { settings, dropped_settings: dropped } = prompt;
  if (Object.keys(settings).length > 0) add("settings", JSON.stringify(settings), 0);
  if (Object.keys(dropped).length > 0) add("settings that the model does not take", JSON.stringify(dropped), 0);
  if (prompt.form !== null) add("form of the answer", JSON.stringify(prompt.form), 0);
  prompt.messages.forEach((message, n) => {
    const { ref, state, stable } = message;
    parts.push({
      name: `${n + 1} ${message.role}`,
      text: message.text,
      tokens: message.tokens,
      ref,
      state,
      stable,
      cached: false,
      point: points.get(n + 1) ?? "",
    });
  });
  add("tail", prompt.tail, prompt.tail_tokens, { state: "tail", stable: false, name: `tail, ${prompt.tail_kind}` });
  markCached(prompt, parts);
  return parts;
}

/** Mark the first parts that together have as many tokens as the provider read from its cache. */
function markCached(prompt: Prompt, parts: Part[]): void {
  const reply = prompt.reply;
  if (reply === null || reply.cache_read_tokens === 0 || reply.input_tokens === 0) return;
  const total = parts.reduce((sum, part) => sum + part.tokens, 0);
  const read = (total * reply.cache_read_tokens) / reply.input_tokens;
  let sum = 0;
  for (const part of parts) {
    sum += part.tokens;
    if (sum > read * 1.02) return;
    part.cached = true;
  }
}

/** Return the key by which a part is found in another prompt. */
export function keyOf(part: Part): string {
  return part.ref ? `${part.ref} ${part.name.replace(/^\d+ /, "")}` : part.name.replace(/,.*/, "");
}

/** Return the name of the colour of a part. */
export function tone(part: Part): string {
  if (part.state !== "full") return part.state;
  return part.cached ? "cached" : part.stable ? "stable" : "new";
}

interface PartProps {
  part: Part;
  total: number;
  /** The same part of the round before: nothing if the rounds are not compared, null if it had none. */
  earlier: Part | null | undefined;
}

export function PartView({ part, total, earlier }: PartProps) {
  const same = earlier?.text === part.text;
  const share = total ? (100 * part.tokens) / total : 0;
  const mark = earlier === undefined ? "" : earlier === null ? "added" : same ? "unchanged" : "changed";
  return (
    <>
      <section class={`part tone-edge-${tone(part)} ${same ? "part-same" : ""}`} aria-label={part.name}>
        <header class="part-head">
          <h3>{part.name}</h3>
          {part.ref ? <RefLink name={part.ref} /> : null}
          {STATES[part.state] && part.state !== "tail" ? <span class={`tag tone-tag-${part.state}`}>{STATES[part.state]}</span> : null}
          {mark ? <span class={`tag mark-${mark}`}>{mark}</span> : null}
          {part.state !== "full" && part.ref ? (
            <button type="button" class="quiet" onClick={() => (openRef.value = part.ref)}>
              Read it whole
            </button>
          ) : null}
          <span class="part-tokens" title={`${share.toFixed(1)} % of the prompt`}>
            {count(part.tokens)}
          </span>
        </header>
        {part.name === "tools" ? <ToolNames text={part.text} /> : null}
        <PartText part={part} earlier={earlier} same={same} />
      </section>
      {part.point ? <p class="cache-point">cache point {part.point}</p> : null}
    </>
  );
}

/** The names of the tools, before their JSON. */
function ToolNames({ text }: { text: string }) {
  const names = useMemo(() => toolNames(text), [text]);
  if (names.length === 0) return null;
  return (
    <ul class="tool-names" aria-label="Tools">
      {names.map((name, n) => (
        <li key={n}>{name}</li>
      ))}
    </ul>
  );
}

function toolNames(text: string): string[] {
  try {
    const tools = list(JSON.parse(text) as Json).map(object);
    return tools.map((tool) => textOf(tool["name"]) || textOf(object(tool["function"])["name"])).filter(Boolean);
  } catch {
    return [];
  }
}

const FOLDED = 1_200;
const FOLDED_TOOLS = 200;
const SAME = 160;

function PartText({ part, earlier, same }: { part: Part; earlier: Part | null | undefined; same: boolean }) {
  const most = part.name === "tools" ? FOLDED_TOOLS : FOLDED;
  const isOpen = useSignal(part.text.length <= most && !same);
  useEffect(() => {
    isOpen.value = part.text.length <= most && !same;
  }, [part.text, same]);
  const changes = earlier && !same ? compareLines(earlier.text, part.text) : null;
  if (changes !== null) return <Changes changes={changes} />;
  const shown = isOpen.value ? part.text : `${part.text.slice(0, same ? SAME : most)}${part.text.length > SAME ? "…" : ""}`;
  return (
    <>
      <pre class="part-text">
        <RefText text={shown} />
      </pre>
      {part.text.length > most || same ? (
        <button type="button" class="quiet fold" aria-expanded={isOpen.value} onClick={() => (isOpen.value = !isOpen.value)}>
          {isOpen.value ? "Fold" : `Show all ${count(part.text.length)} characters`}
        </button>
      ) : null}
    </>
  );
}

function Changes({ changes }: { changes: LineChange[] }) {
  return (
    <pre class="part-text changes">
      {changes.map((change, n) => (
        <span key={n} class={`change-${change.kind}`}>
          {change.kind === "same" && change.lines.length > 6 ? (
            <>
              {`  ${change.lines.slice(0, 2).join("\n  ")}\n`}
              <span class="faint">{`  … ${count(change.lines.length - 4)} lines as before\n`}</span>
              {`  ${change.lines.slice(-2).join("\n  ")}\n`}
            </>
          ) : (
            change.lines.map((line) => `${change.kind === "added" ? "+ " : change.kind === "removed" ? "- " : "  "}${line}\n`).join("")
          )}
        </span>
      ))}
    </pre>
  );
}

