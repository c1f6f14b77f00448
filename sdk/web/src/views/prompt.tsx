// Exactly what a round sent to its model, part by part: what is stable, cached, shortened, hidden or summarized, what each
// part costs in tokens, and what differs from the round before.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { get, readPath } from "../api";
import { troubleOf, type Trouble } from "../blocks";
import { compareLines, type LineChange } from "../diff";
import { count, dollars, short } from "../format";
import { Copy, openRef, RefLink, RefText } from "../refs";
import { linkTo } from "../route";
import type { Outline, PartState, Place, Prompt, RoundPosition } from "../types";
import { TroubleNote } from "./trouble";

/** A part of a prompt as the page shows it. */
interface Part {
  name: string;
  ref: string;
  text: string;
  tokens: number;
  state: PartState | "tail";
  stable: boolean;
  cached: boolean;
  point: string;
}

const STATES: Record<Part["state"], string> = {
  full: "",
  shortened: "shortened",
  hidden: "hidden",
  cleared: "cleared",
  summary: "summary",
  tail: "tail",
};

export function PromptView({ place, turn, round }: { place: Place; turn: number; round: number }) {
  const prompt = useSignal<Prompt | null>(null);
  const before = useSignal<Prompt | null>(null);
  const trouble = useSignal<Trouble | null>(null);
  const compares = useSignal(false);

  useEffect(() => {
    let left = false;
    before.value = null;
    const load = async () => {
      try {
        const position = turn ? { turn, round } : await lastRound(place);
        const answer = position === null ? null : await fetchPrompt(place, position);
        if (left) return;
        prompt.value = answer;
        trouble.value = position === null ? { kind: "refused", text: "No model was asked in this conversation." } : null;
        if (answer?.before) {
          const earlier = await fetchPrompt(place, answer.before);
          if (!left) before.value = earlier;
        }
      } catch (error) {
        if (!left) trouble.value = troubleOf(error);
      }
    };
    void load();
    return () => {
      left = true;
    };
  }, [place, turn, round]);

  if (trouble.value) return <TroubleNote trouble={trouble.value} />;
  const current = prompt.value;
  if (current === null) return <p class="hint">Loading…</p>;
  return <PromptParts place={place} prompt={current} before={before.value} compares={compares.value} onCompare={() => (compares.value = !compares.value)} />;
}

async function fetchPrompt(place: Place, at: RoundPosition): Promise<Prompt> {
  return get<Prompt>(readPath(place, `/turns/turn_${at.turn}/rounds/${at.round}/prompt`));
}

async function lastRound(place: Place): Promise<RoundPosition | null> {
  const outline = await get<Outline>(readPath(place, "/outline", { limit: 1_000 }));
  for (const turn of outline.turns.toReversed()) {
    const round = turn.rounds.findLast((item) => item.model !== "");
    if (round) return { turn: Number(turn.turn_id.slice(5)), round: round.round };
  }
  return null;
}

interface PartsProps {
  place: Place;
  prompt: Prompt;
  before: Prompt | null;
  compares: boolean;
  onCompare: () => void;
}

function PromptParts({ place, prompt, before, compares, onCompare }: PartsProps) {
  const parts = useMemo(() => partsOf(prompt), [prompt]);
  const earlier = useMemo(() => (before ? new Map(partsOf(before).map((part) => [keyOf(part), part])) : null), [before]);
  const total = parts.reduce((sum, part) => sum + part.tokens, 0);
  const left = parts.filter((part) => part.state !== "full" && part.state !== "tail");
  return (
    <div class="prompt">
      <header class="prompt-head">
        <nav class="stepper" aria-label="Rounds">
          <Step place={place} at={prompt.before} label="Earlier round" mark="←" />
          <h2>
            {prompt.turn_id.replace("_", " ")}, round {prompt.round}
          </h2>
          <Step place={place} at={prompt.after} label="Later round" mark="→" />
        </nav>
        <p class="prompt-facts">
          <span>{prompt.model}</span>
          <span>{prompt.protocol}</span>
          <span>about {count(prompt.tokens)} tokens</span>
          <span>
            epoch {prompt.epoch}
            {prompt.opened_by ? `, opened by ${prompt.opened_by}` : ""}
          </span>
          <a href={linkTo(place, "timeline", prompt.seq)}>block {count(prompt.seq)}</a>
        </p>
        {prompt.reply ? <Reply prompt={prompt} /> : <p class="prompt-facts">The model has not replied.</p>}
        {prompt.inexact ? <p class="warning">The sent prompt may differ: {prompt.inexact}.</p> : null}
        <Bar parts={parts} total={total} />
        <div class="prompt-tools">
          <label class="check">
            <input type="checkbox" checked={compares} disabled={before === null} onChange={onCompare} />
            Compare with the round before
          </label>
          <Copy text={parts.map((part) => part.text).join("\n")} label="Copy all" />
        </div>
        {left.length > 0 ? <LeftOut parts={left} /> : null}
      </header>
      <div class="parts">
        {parts.map((part, n) => (
          <PartView key={n} part={part} total={total} earlier={compares && earlier ? (earlier.get(keyOf(part)) ?? null) : undefined} />
        ))}
        {compares && earlier ? <Removed earlier={earlier} parts={parts} /> : null}
      </div>
    </div>
  );
}

function Step({ place, at, label, mark }: { place: Place; at: RoundPosition | null; label: string; mark: string }) {
  if (at === null) {
    return (
      <span class="step step-off" aria-hidden="true">
        {mark}
      </span>
    );
  }
  return (
    <a class="step" href={linkTo(place, "prompt", at.turn, at.round)} aria-label={`${label}: turn ${at.turn}, round ${at.round}`}>
      {mark}
    </a>
  );
}

function Reply({ prompt }: { prompt: Prompt }) {
  const reply = prompt.reply;
  if (reply === null) return null;
  const share = reply.input_tokens ? Math.round((100 * reply.cache_read_tokens) / reply.input_tokens) : 0;
  return (
    <p class="prompt-facts">
      <span>reply: {reply.stop_reason}</span>
      {reply.input_tokens ? <span>{count(reply.input_tokens)} tokens in</span> : null}
      {reply.cache_read_tokens ? (
        <span>
          {count(reply.cache_read_tokens)} from the cache ({share} %)
        </span>
      ) : null}
      {reply.output_tokens ? <span>{count(reply.output_tokens)} out</span> : null}
      {reply.cost !== null ? <span>{dollars(reply.cost)}</span> : null}
      <RefLink name={reply.ref} />
    </p>
  );
}

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

function keyOf(part: Part): string {
  return part.ref ? `${part.ref} ${part.name.replace(/^\d+ /, "")}` : part.name.replace(/,.*/, "");
}

function tone(part: Part): string {
  if (part.state !== "full") return part.state;
  return part.cached ? "cached" : part.stable ? "stable" : "new";
}

const LEGEND: [string, string][] = [
  ["cached", "read from the cache"],
  ["stable", "as in the round before"],
  ["new", "new in this round"],
  ["shortened", "shortened"],
  ["hidden", "hidden"],
  ["cleared", "cleared"],
  ["summary", "summary"],
  ["tail", "tail"],
];

function Bar({ parts, total }: { parts: Part[]; total: number }) {
  const present = new Set(parts.map(tone));
  const merged: { tone: string; tokens: number }[] = [];
  for (const part of parts) {
    const last = merged.at(-1);
    if (last?.tone === tone(part)) last.tokens += part.tokens;
    else merged.push({ tone: tone(part), tokens: part.tokens });
  }
  return (
    <>
      <div class="bar" aria-hidden="true">
        {merged.map((item, n) => (
          <span key={n} class={`tone-${item.tone}`} style={{ flexGrow: item.tokens / Math.max(total, 1) }} />
        ))}
      </div>
      <ul class="legend">
        {LEGEND.filter(([name]) => present.has(name)).map(([name, meaning]) => (
          <li key={name}>
            <span class={`swatch tone-${name}`} aria-hidden="true" />
            {meaning}
            <span class="faint"> {short(parts.filter((part) => tone(part) === name).reduce((sum, part) => sum + part.tokens, 0))}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

function LeftOut({ parts }: { parts: Part[] }) {
  return (
    <details class="left-out">
      <summary>{count(parts.length)} parts are not shown in full to the model; each can be read by its ref</summary>
      <ul>
        {parts.map((part, n) => (
          <li key={n}>
            <span class={`swatch tone-${part.state}`} aria-hidden="true" /> {STATES[part.state]} <RefLink name={part.ref} />
          </li>
        ))}
      </ul>
    </details>
  );
}

interface PartProps {
  part: Part;
  total: number;
  /** The same part of the round before: nothing if the rounds are not compared, null if it had none. */
  earlier: Part | null | undefined;
}

function PartView({ part, total, earlier }: PartProps) {
  const same = earlier !== undefined && earlier !== null && earlier.text === part.text;
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
        <PartText part={part} earlier={earlier} same={same} />
      </section>
      {part.point ? <p class="cache-point">cache point {part.point}</p> : null}
    </>
  );
}

const FOLDED = 1_200;

function PartText({ part, earlier, same }: { part: Part; earlier: Part | null | undefined; same: boolean }) {
  const isOpen = useSignal(part.text.length <= FOLDED && !same);
  useEffect(() => {
    isOpen.value = part.text.length <= FOLDED && !same;
  }, [part.text, same]);
  const changes = earlier && !same ? compareLines(earlier.text, part.text) : null;
  if (changes !== null) return <Changes changes={changes} />;
  const shown: ComponentChildren = isOpen.value ? part.text : `${part.text.slice(0, same ? 160 : FOLDED)}${part.text.length > 160 ? "…" : ""}`;
  return (
    <>
      <pre class="part-text">
        <RefText text={String(shown)} />
      </pre>
      {part.text.length > FOLDED || same ? (
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

function Removed({ earlier, parts }: { earlier: Map<string, Part>; parts: Part[] }) {
  const present = new Set(parts.map(keyOf));
  const removed = [...earlier.entries()].filter(([key]) => !present.has(key)).map(([, part]) => part);
  if (removed.length === 0) return null;
  return (
    <details class="left-out">
      <summary>{count(removed.length)} parts of the round before are not in this prompt</summary>
      <ul>
        {removed.map((part, n) => (
          <li key={n}>
            {part.name} {part.ref ? <RefLink name={part.ref} /> : null}
          </li>
        ))}
      </ul>
    </details>
  );
}
