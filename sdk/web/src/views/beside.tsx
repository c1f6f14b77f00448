// A round that ran again, beside the recorded one: the models, what each replied, what it cost, and how the prompts differ.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get, readPath } from "../api";
import { troubleOf, type Trouble } from "../blocks";
import { number, object } from "../bodies";
import { count, dollars, duration } from "../format";
import { fetchPrompt } from "../prompts";
import { linkTo } from "../route";
import { chatOf, type ChatActions } from "../turns";
import type { Place, Prompt, RoundPosition, Row, WindowAnswer } from "../types";
import { ChatItemView } from "./chatitem";
import { keyOf, partsOf, PartView, type Part } from "./promptpart";
import { TroubleNote } from "./trouble";

const MILLISECONDS = 700;
const ROWS = 200;
const CHARACTERS = 40_000;

/** A round: its prompt, and its blocks so far. */
interface Ran {
  prompt: Prompt;
  rows: Row[];
  ended: boolean;
}

export function BesideView({ place, at, other }: { place: Place; at: RoundPosition; other: Place }) {
  const recorded = useRound(place, at);
  const again = useRound(other, at);
  const trouble = recorded.trouble ?? (again.trouble?.kind === "gone" ? null : again.trouble);
  if (trouble) return <TroubleNote trouble={trouble} />;
  return (
    <div class="beside">
      <header class="beside-head">
        <h2>
          turn {at.turn}, round {at.round}, twice
        </h2>
        <a href={linkTo(place, "prompt", at.turn, at.round)}>Back to the prompt</a>
      </header>
      <div class="beside-columns">
        <Side title="recorded" place={place} ran={recorded.ran} at={at} />
        <Side title="run again" place={other} ran={again.ran} at={at} />
      </div>
      {recorded.ran && again.ran ? <Differences before={recorded.ran.prompt} after={again.ran.prompt} /> : null}
    </div>
  );
}

function useRound(place: Place, at: RoundPosition): { ran: Ran | null; trouble: Trouble | null } {
  const ran = useSignal<Ran | null>(null);
  const trouble = useSignal<Trouble | null>(null);
  const { tenant, project, user, conversation } = place;
  useEffect(() => {
    let left = false;
    let timer = 0;
    const load = async () => {
      try {
        const answer = await fetchRound(place, at);
        if (left) return;
        ran.value = answer;
        trouble.value = null;
      } catch (error) {
        if (!left) trouble.value = troubleOf(error);
      }
      if (!left && !ran.value?.ended) timer = window.setTimeout(() => void load(), MILLISECONDS);
    };
    void load();
    return () => {
      left = true;
      window.clearTimeout(timer);
    };
  }, [tenant, project, user, conversation, at.turn, at.round]);
  return { ran: ran.value, trouble: trouble.value };
}

async function fetchRound(place: Place, at: RoundPosition): Promise<Ran> {
  const prompt = await fetchPrompt(place, at);
  const rows: Row[] = [];
  let ended = false;
  for (let after = prompt.seq - 1; !ended; ) {
    const query = { after, limit: ROWS, characters: CHARACTERS };
    const answer = await get<WindowAnswer>(readPath(place, "/window", query));
    for (const row of answer.rows) {
      if (row.seq > prompt.seq && (row.type === "react.round.start" || row.type === "react.exit")) ended = true;
      if (ended && row.type !== "react.exit") break;
      rows.push(row);
      if (ended) break;
    }
    after += ROWS;
    if (answer.rows.length < ROWS) break;
  }
  return { prompt, rows, ended };
}

function Side({ title, place, ran, at }: { title: string; place: Place; ran: Ran | null; at: RoundPosition }) {
  const actions: ChatActions = useMemo(
    () => ({ writable: false, approves: false, opensCalls: false, place, sources: new Map(), progress: {}, answer: nothing, rate: nothing, fork: nothing }),
    [place],
  );
  const chat = useMemo(() => chatOf(ran?.rows ?? []), [ran]);
  return (
    <section class="side" aria-label={title}>
      <header class="side-head">
        <h3>
          <span class="tag">{title}</span> {ran ? ran.prompt.model : ""}
        </h3>
        <p class="prompt-facts">
          <a href={linkTo(place, "chat")}>{place.conversation}</a>
          <a href={linkTo(place, "prompt", at.turn, at.round)}>its prompt</a>
        </p>
        {ran ? <Facts ran={ran} /> : null}
      </header>
      {ran === null ? <p class="hint">The round has not begun.</p> : null}
      <div class="side-items">
        {chat.items.map((item) =>
          item.kind === "end" ? null : (
            <article key={item.key} class={`item item-${item.kind}`}>
              <ChatItemView item={item} actions={{ ...actions, sources: chat.sources }} />
            </article>
          ),
        )}
        {ran !== null && !ran.ended ? <p class="working">Working</p> : null}
      </div>
    </section>
  );
}

function nothing(): void {
  // Nothing can be sent from here.
}

function Facts({ ran }: { ran: Ran }) {
  const { reply } = ran.prompt;
  const settings = Object.entries(ran.prompt.settings).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
  const decision = ran.rows.find((row) => row.type === "react.decision");
  const first = ran.rows[0];
  const elapsed = decision && first ? Date.parse(decision.ts) - Date.parse(first.ts) : number(object(decision?.body)["elapsed_ms"]);
  return (
    <p class="prompt-facts">
      {settings.length > 0 ? <span>{settings.join(", ")}</span> : null}
      {reply ? <span>{reply.stop_reason}</span> : null}
      {reply?.input_tokens ? <span>{count(reply.input_tokens)} in</span> : null}
      {reply?.output_tokens ? <span>{count(reply.output_tokens)} out</span> : null}
      {reply && reply.cost !== null ? <span>{dollars(reply.cost)}</span> : null}
      {decision ? <span>{duration(elapsed)}</span> : null}
    </p>
  );
}

function Differences({ before, after }: { before: Prompt; after: Prompt }) {
  const changed = useMemo(() => changedParts(partsOf(before), partsOf(after)), [before, after]);
  return (
    <section class="beside-changes" aria-label="Differences of the prompts">
      <h3>What differs in the prompts</h3>
      {changed.length === 0 ? <p class="hint">Nothing: both models were sent the same.</p> : null}
      <div class="parts">
        {changed.map(({ part, earlier }, n) => (
          <PartView key={n} part={part} total={0} earlier={earlier} />
        ))}
      </div>
    </section>
  );
}

function changedParts(before: Part[], after: Part[]): { part: Part; earlier: Part | null }[] {
  const earlier = new Map(before.map((part) => [keyOf(part), part]));
  const parts = after.map((part) => ({ part, earlier: earlier.get(keyOf(part)) ?? null }));
  return parts.filter(({ part, earlier: same }) => same?.text !== part.text);
}
