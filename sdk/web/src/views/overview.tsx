// The turns of a conversation on a time axis: rounds, calls in parallel lanes, child runs, tokens and costs.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { troubleOf, type Trouble } from "../blocks";
import { count, dollars, duration, quantity, short } from "../format";
import { fetchOutline } from "../prompts";
import { linkTo, samePlace } from "../route";
import { stored } from "../state";
import type { Outline, OutlineRound, OutlineTurn, Place } from "../types";
import { VirtualList } from "../virtual";
import { ForkTree } from "./forks";
import { Lanes } from "./lanes";
import { TroubleNote } from "./trouble";

const UNFINISHED = new Set(["running", "paused", "waiting"]);

type Line = { turn: OutlineTurn; round: null } | { turn: OutlineTurn; round: OutlineRound };

export function OverviewView({ place }: { place: Place }) {
  const outline = useSignal<Outline | null>(null);
  const trouble = useSignal<Trouble | null>(null);
  const closed = useSignal<ReadonlySet<string>>(new Set());
  const head = stored.value?.items.find((item) => samePlace(item, place))?.head ?? 0;

  useEffect(() => {
    let left = false;
    const load = async () => {
      const earlier = outline.value?.turns ?? [];
      let turns = earlier.slice(0, firstOpen(earlier));
      for (;;) {
        const answer = await fetchOutline(place, turns.length + 1);
        if (left) return;
        turns = [...turns, ...answer.turns];
        outline.value = { ...answer, turns };
        if (answer.turns.length === 0 || turns.length >= answer.total) return;
      }
    };
    load().catch((error: unknown) => {
      if (!left) trouble.value = troubleOf(error);
    });
    return () => {
      left = true;
    };
  }, [place, head]);

  const current = outline.value;
  const lines = useMemo(() => linesOf(current, closed.value), [current, closed.value]);
  if (trouble.value && current === null) return <TroubleNote trouble={trouble.value} />;
  if (current === null) return <p class="hint">Loading…</p>;
  return (
    <div class="overview">
      <Totals outline={current} />
      <ForkTree place={place} />
      <VirtualList total={lines.length} estimate={(index) => heightOf(lines[index])} label={`Turns of ${place.conversation}`} className="turns">
        {(index) => {
          const line = lines[index];
          if (line === undefined) return null;
          return (
            <article aria-posinset={index + 1} aria-setsize={lines.length}>
              {line.round === null ? (
                <TurnHead
                  place={place}
                  turn={line.turn}
                  open={!closed.value.has(line.turn.turn_id)}
                  onToggle={() => {
                    const next = new Set(closed.value);
                    if (!next.delete(line.turn.turn_id)) next.add(line.turn.turn_id);
                    closed.value = next;
                  }}
                />
              ) : (
                <RoundLine place={place} turn={line.turn} round={line.round} />
              )}
            </article>
          );
        }}
      </VirtualList>
    </div>
  );
}

/** Return the index of the first turn that may change: one that had not ended, or else the last one. */
function firstOpen(turns: OutlineTurn[]): number {
  const open = turns.findIndex((turn) => UNFINISHED.has(turn.state));
  return open >= 0 ? open : Math.max(0, turns.length - 1);
}

/** Return the height of a line before it is measured: that of a turn depends on its lanes. */
function heightOf(line: Line | undefined): number {
  if (line?.round !== null) return 26;
  const most = Math.max(0, ...line.turn.rounds.map((round) => round.calls.length));
  return 128 + Math.min(10, most) * 17;
}

function linesOf(outline: Outline | null, closed: ReadonlySet<string>): Line[] {
  return (outline?.turns ?? []).flatMap((turn) => [
    { turn, round: null },
    ...(closed.has(turn.turn_id) ? [] : turn.rounds.map((round) => ({ turn, round }))),
  ]);
}

function Totals({ outline }: { outline: Outline }) {
  const { turns } = outline;
  const sum = (of: (turn: OutlineTurn) => number) => turns.reduce((total, turn) => total + of(turn), 0);
  const costs = turns.map((turn) => turn.cost).filter((cost) => cost !== null);
  const input = sum((turn) => turn.input_tokens);
  const cached = sum((turn) => turn.cache_read_tokens);
  const facts: [string, string][] = [
    ["turns", count(outline.total)],
    ["rounds", count(sum((turn) => turn.rounds.length))],
    ["calls", count(sum((turn) => turn.rounds.reduce((n, round) => n + round.calls.length, 0)))],
    ["blocks", count(outline.head)],
    ["tokens in", short(input)],
    ["from the cache", input ? `${Math.round((100 * cached) / input)} %` : "–"],
    ["tokens out", short(sum((turn) => turn.output_tokens))],
    ["cost", costs.length > 0 ? dollars(costs.reduce((total, cost) => total + cost, 0)) : "–"],
  ];
  return (
    <dl class="totals">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function TurnHead({ place, turn, open, onToggle }: { place: Place; turn: OutlineTurn; open: boolean; onToggle: () => void }) {
  return (
    <section class="turn">
      <header class="turn-head">
        <button type="button" class="quiet turn-toggle" aria-expanded={open} onClick={onToggle} aria-label={`Rounds of ${turn.turn_id.replace("_", " ")}`}>
          {open ? "▾" : "▸"}
        </button>
        <h2>
          <span class="faint">{turn.turn_id.replace("_", " ")}</span> {turn.title}
        </h2>
        <span class={`tag state-${turn.state}`}>{turn.state.replace("_", " ")}</span>
      </header>
      <p class="turn-facts">
        <span>{duration(turn.ended - turn.started)}</span>
        <span>{quantity(turn.rounds.length, "round")}</span>
        {turn.input_tokens ? (
          <span>
            {short(turn.input_tokens)} in, {short(turn.output_tokens)} out
          </span>
        ) : null}
        {turn.cost !== null ? <span>{dollars(turn.cost)}</span> : null}
        <span>
          {turn.bundle}
          {turn.agent ? ` · ${turn.agent}` : ""}
        </span>
        <a href={linkTo(place, "timeline", turn.seq)}>blocks {count(turn.seq)} to {count(turn.last_seq)}</a>
      </p>
      {turn.error ? <p class="trouble">{turn.error}</p> : null}
      <Lanes place={place} turn={turn} />
      {open && turn.rounds.length > 0 ? (
        <p class="round round-heads" aria-hidden="true">
          <span class="round-name">#</span>
          <span>calls</span>
          <span />
          <span class="round-tokens">prompt</span>
          <span class="round-time">model</span>
          <span class="round-time">calls</span>
          <span class="round-cost">cost</span>
        </p>
      ) : null}
    </section>
  );
}

/** Return how long the calls of a round took together; nothing if it has none, or one has not ended. */
function callsTime(round: OutlineRound): string {
  if (round.calls.length === 0 || round.calls.some((call) => call.ended === null)) return "";
  return duration(Math.max(...round.calls.map((call) => call.ended ?? 0)) - Math.min(...round.calls.map((call) => call.called)));
}

function RoundLine({ place, turn, round }: { place: Place; turn: OutlineTurn; round: OutlineRound }) {
  const number = Number(turn.turn_id.slice(5));
  const failed = round.calls.filter((call) => call.status !== "ok" && call.ended !== null).length;
  const tools = new Map<string, number>();
  for (const call of round.calls) tools.set(call.tool, (tools.get(call.tool) ?? 0) + 1);
  const children = round.calls.filter((call) => call.child !== "");
  return (
    <div class={`round ${round.opened_by && round.opened_by !== "start" ? "round-epoch" : ""}`}>
      <a class="round-name" href={linkTo(place, "prompt", number, round.round, round.seq)} aria-label={`Prompt of round ${round.round}`}>
        {round.round}
      </a>
      <span class="round-tools">
        {[...tools].map(([name, n]) => (n > 1 ? `${name} ×${n}` : name)).join(", ") || (round.replied === null ? "no reply" : round.stop_reason === "stop" ? "answer" : round.stop_reason)}
        {failed ? <span class="bad"> {quantity(failed, "failure")}</span> : null}
        {children.slice(0, 3).map((call) => (
          <a key={call.call_id} href={linkTo({ ...place, conversation: call.child }, "overview")}>
            {" "}
            ↳ {call.agent || "child run"}
          </a>
        ))}
      </span>
      <span class="round-epochs">
        {round.opened_by && round.opened_by !== "start" ? `epoch ${round.epoch}: ${round.opened_by}` : ""}
        {round.summarized ? " summarized" : ""}
      </span>
      <span class="round-tokens" title="tokens of the prompt">
        {short(round.input_tokens || round.tokens)}
        {round.cache_read_tokens ? <span class="faint"> ({Math.round((100 * round.cache_read_tokens) / Math.max(round.input_tokens, 1))} % cached)</span> : null}
      </span>
      <span class="round-time">{duration((round.replied ?? round.ended) - round.started)}</span>
      <span class="round-time">{callsTime(round)}</span>
      <span class="round-cost">{dollars(round.cost)}</span>
    </div>
  );
}
