// Exactly what a round sent to its model, part by part: what is stable, cached, shortened, hidden or summarized, what each
// part costs in tokens, and what differs from the round before.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { troubleOf, type Trouble } from "../blocks";
import { count, dollars } from "../format";
import { fetchLastPrompt, fetchPrompt } from "../prompts";
import { Copy, RefLink } from "../refs";
import { linkTo } from "../route";
import { isWritable } from "../state";
import type { Place, Prompt, RoundPosition } from "../types";
import { keyOf, partsOf, PartView, STATES, tone, type Part } from "./promptpart";
import { RerunForm } from "./rerun";
import { TroubleNote } from "./trouble";

export function PromptView({ place, turn, round, seq }: { place: Place; turn: number; round: number; seq: number }) {
  const prompt = useSignal<Prompt | null>(null);
  const before = useSignal<Prompt | null>(null);
  const trouble = useSignal<Trouble | null>(null);
  const compares = useSignal(false);

  useEffect(() => {
    let left = false;
    before.value = null;
    const asked = turn && round ? fetchPrompt(place, { turn, round, seq }) : fetchLastPrompt(place, turn);
    asked
      .then((answer) => {
        if (left) return;
        prompt.value = answer;
        trouble.value = null;
      })
      .catch((error: unknown) => {
        if (!left) trouble.value = troubleOf(error);
      });
    return () => {
      left = true;
    };
  }, [place, turn, round, seq]);

  const shown = prompt.value;
  useEffect(() => {
    const at = shown?.before ?? null;
    if (!compares.value || at === null) return;
    fetchPrompt(place, at)
      .then((answer) => {
        if (prompt.value === shown) before.value = answer;
      })
      .catch((error: unknown) => {
        trouble.value = troubleOf(error);
      });
  }, [place, shown, compares.value]);

  if (trouble.value) return <TroubleNote trouble={trouble.value} />;
  if (shown === null) return <p class="hint">Loading…</p>;
  return <PromptParts place={place} prompt={shown} before={before.value} compares={compares.value} onCompare={() => (compares.value = !compares.value)} />;
}

interface PartsProps {
  place: Place;
  prompt: Prompt;
  before: Prompt | null;
  compares: boolean;
  onCompare: () => void;
}

function PromptParts({ place, prompt, before, compares, onCompare }: PartsProps) {
  const again = useSignal(false);
  const more = useSignal(MORE);
  const parts = useMemo(() => partsOf(prompt), [prompt]);
  const earlier = useMemo(() => (before ? new Map(partsOf(before).map((part) => [keyOf(part), part])) : null), [before]);
  const total = parts.reduce((sum, part) => sum + part.tokens, 0);
  const begin = Math.max(FIRST, parts.length - more.value);
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
        {prompt.is_last ? null : <p class="warning">The turn was redirected before the model replied. The round sent another request after this one.</p>}
        {prompt.inexact ? <p class="warning">The sent prompt may differ: {prompt.inexact}.</p> : null}
        <Bar parts={parts} total={total} />
        <div class="prompt-tools">
          <label class="check">
            <input type="checkbox" checked={compares} disabled={prompt.before === null} onChange={onCompare} />
            Compare with the round before
          </label>
          <Copy text={parts.map((part) => part.text).join("\n")} label="Copy all" />
          <span class="grow" />
          {isWritable(place) ? (
            <button type="button" aria-expanded={again.value} onClick={() => (again.value = !again.value)}>
              Run again
            </button>
          ) : null}
        </div>
        {again.value ? <RerunForm key={prompt.ref} place={place} prompt={prompt} /> : null}
        {left.length > 0 ? <LeftOut parts={left} /> : null}
      </header>
      <div class="parts">
        {parts.map((part, n) => {
          if (n === FIRST && n < begin) return <Hidden key="hidden" count={begin - FIRST} onMore={() => (more.value += MORE)} />;
          if (n > FIRST && n < begin) return null;
          return <PartView key={n} part={part} total={total} earlier={compares && earlier ? (earlier.get(keyOf(part)) ?? null) : undefined} />;
        })}
        {compares && earlier ? <Removed earlier={earlier} parts={parts} /> : null}
      </div>
    </div>
  );
}

/** Of a long prompt the first parts are shown, and so many of the last ones. */
const FIRST = 20;
const MORE = 200;

function Hidden({ count: hidden, onMore }: { count: number; onMore: () => void }) {
  return (
    <button type="button" class="earlier" onClick={onMore}>
      Show {count(Math.min(MORE, hidden))} of {count(hidden)} parts between
    </button>
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
    <a class="step" href={linkTo(place, "prompt", at.turn, at.round, at.seq)} aria-label={`${label}: turn ${at.turn}, round ${at.round}`}>
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
            <span class="faint"> {shareOf(parts, name, total)}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

function shareOf(parts: Part[], name: string, total: number): string {
  const tokens = parts.filter((part) => tone(part) === name).reduce((sum, part) => sum + part.tokens, 0);
  const share = (100 * tokens) / Math.max(total, 1);
  return share > 0 && share < 1 ? "under 1 %" : `${Math.round(share)} %`;
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
