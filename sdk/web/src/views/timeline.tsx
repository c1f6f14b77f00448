// Every block of a conversation, one line each, and the chosen one in full beside the list.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { BlockCache } from "../blocks";
import { clock, count } from "../format";
import { linkTo, route } from "../route";
import { summarize } from "../summaries";
import type { Place, Row } from "../types";
import { movedIndex, VirtualList, type ListControl } from "../virtual";
import { BlockPanel } from "./block";
import { FindBar } from "./find";
import { TroubleNote } from "./trouble";

const CHARACTERS = 300;

export function TimelineView({ place, chosen }: { place: Place; chosen: number }) {
  const cache = useMemo(() => new BlockCache(place, CHARACTERS), [place]);
  const control = useRef<ListControl | null>(null);
  const focused = useSignal(chosen || 1);

  useEffect(() => {
    void cache.open(false).then(() => {
      if (chosen > 1) control.current?.show(chosen - 1, "center");
    });
    cache.poll();
    return () => {
      cache.close();
    };
  }, [cache]);

  const head = cache.version.value > 0 ? cache.head.value : 0; // each new version of the cache renders the rows again
  const trouble = cache.trouble.value;
  if (trouble !== null && head === 0) return <TroubleNote trouble={trouble} />;

  function choose(seq: number) {
    focused.value = seq;
    location.hash = linkTo(place, "timeline", seq);
  }

  function onKey(event: KeyboardEvent, index: number) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(index + 1);
      return;
    }
    const next = movedIndex(event.key, index, head);
    if (next === null) return;
    event.preventDefault();
    focused.value = next + 1;
    control.current?.focus(next);
  }

  return (
    <div class={`split ${chosen ? "split-open" : ""}`}>
      <section class="split-list" aria-label="Blocks">
        <FindBar
          place={place}
          head={head}
          onShow={(seq) => {
            control.current?.show(seq - 1, "center");
            choose(seq);
          }}
        />
        {trouble !== null ? <TroubleNote trouble={trouble} /> : null}
        <VirtualList total={head} estimate={(index) => (cache.peek(index + 1)?.type === "user.prompt" ? 64 : 28)} label={`Blocks of ${place.conversation}`} className="rows" control={control}>
          {(index) => {
            const seq = index + 1;
            return (
              <TimelineRow
                seq={seq}
                row={cache.row(seq)}
                before={cache.peek(seq - 1)}
                total={head}
                chosen={chosen === seq}
                tabbable={focused.value === seq}
                onChoose={() => {
                  choose(seq);
                }}
                onKey={(event) => {
                  onKey(event, index);
                }}
              />
            );
          }}
        </VirtualList>
      </section>
      {chosen ? <BlockPanel place={place} seq={chosen} onClose={() => (location.hash = linkTo(place, "timeline"))} /> : null}
    </div>
  );
}

interface RowProps {
  seq: number;
  row: Row | undefined;
  before: Row | undefined;
  total: number;
  chosen: boolean;
  tabbable: boolean;
  onChoose: () => void;
  onKey: (event: KeyboardEvent) => void;
}

function TimelineRow({ seq, row, before, total, chosen, tabbable, onChoose, onKey }: RowProps) {
  if (row === undefined) {
    return (
      <article class="row row-empty" aria-posinset={seq} aria-setsize={total} aria-busy="true">
        <span class="row-seq">{seq}</span>
      </article>
    );
  }
  const { kind, label, line } = summarize(row);
  const opensTurn = row.turn_id !== "" && row.turn_id !== before?.turn_id;
  const opensRound = !opensTurn && row.type === "react.round.start";
  const short = line.length > 240 ? `${line.slice(0, 240)}…` : line;
  return (
    <article
      aria-posinset={seq}
      aria-setsize={total}
      aria-label={`${label}: ${short}`}
      class={opensTurn ? "opens-turn" : opensRound ? "opens-round" : undefined}
    >
      {opensTurn ? <h3 class="turn-name">{row.turn_id.replace("_", " ")}</h3> : null}
      <div
        data-row
        role="button"
        tabIndex={tabbable ? 0 : -1}
        aria-pressed={chosen}
        class={`row kind-${kind} ${row.round ? "in-round" : ""}`}
        onClick={onChoose}
        onKeyDown={onKey}
      >
        <span class="row-seq">{seq}</span>
        <span class="row-time">{clock(row.ts)}</span>
        <span class="row-label">{label}</span>
        <span class="row-line">{short}</span>
        {row.cut.length > 0 ? <span class="row-size">{count(Math.max(...row.cut.map((cut) => cut.characters)))}</span> : null}
      </div>
    </article>
  );
}

/** Return the seq of the chosen block in the address, or 0. */
export function chosenSeq(): number {
  const seq = Number(route.value.rest[0] ?? 0);
  return Number.isSafeInteger(seq) && seq > 0 ? seq : 0;
}
