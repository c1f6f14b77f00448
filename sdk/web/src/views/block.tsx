// One block in full: its ref, its text, its fields, and its JSON.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, pathOf, post, readPath } from "../api";
import { troubleOf, type Trouble } from "../blocks";
import { field, object } from "../bodies";
import { bytes, clock, count } from "../format";
import { JsonView } from "../json";
import { Markdown } from "../markdown";
import { Copy, RefText } from "../refs";
import { linkTo } from "../route";
import { isWritable, refreshStored } from "../state";
import { summarize } from "../summaries";
import type { Json, Place, Row, WindowAnswer } from "../types";
import { TroubleNote } from "./trouble";

const CHARACTERS = 100_000;
const MOST_CHARACTERS = 64 * 1024 * 1024;
/** The types whose text a person or a model wrote, which is laid out as Markdown. */
const WRITTEN = new Set([
  "user.prompt",
  "user.followup",
  "user.steer",
  "react.thinking",
  "react.notes",
  "react.draft",
  "assistant.completion",
  "conv.range.summary",
]);

export function BlockPanel({ place, seq, onClose }: { place: Place; seq: number; onClose: () => void }) {
  const row = useSignal<Row | null>(null);
  const trouble = useSignal<Trouble | null>(null);
  const asJson = useSignal(false);
  const all = useSignal(0);

  async function fetchRow(characters: number) {
    try {
      const answer = await get<WindowAnswer>(readPath(place, "/window", { after: seq - 1, limit: 1, characters }));
      row.value = answer.rows[0] ?? null;
      trouble.value = null;
    } catch (error) {
      trouble.value = troubleOf(error);
    }
  }

  async function fork() {
    try {
      const made = await post<{ conversation_id: string }>(pathOf(place, "/fork"), { seq });
      await refreshStored();
      location.hash = linkTo({ ...place, conversation: made.conversation_id }, "chat");
    } catch (error) {
      trouble.value = troubleOf(error);
    }
  }

  useEffect(() => {
    all.value = 0;
    void fetchRow(CHARACTERS);
  }, [seq, place]);

  const block = row.value;
  return (
    <aside
      class="panel"
      aria-label={`Block ${seq}`}
      onKeyDown={(event) => {
        if (event.key === "Escape") onClose();
      }}
    >
      <header class="panel-head">
        <h2>
          <span class="panel-seq">{count(seq)}</span> {block?.type ?? ""}
        </h2>
        <button type="button" class="quiet" onClick={onClose} aria-label="Close the block">
          ✕
        </button>
      </header>
      {trouble.value ? <TroubleNote trouble={trouble.value} /> : null}
      {block !== null && block.seq === seq ? (
        <div class="panel-body">
          <BlockHead place={place} block={block} />
          <div class="panel-switch">
            {isWritable(place) ? (
              <button type="button" class="quiet" onClick={() => void fork()} title="Begin another conversation with the blocks up to this one">
                Fork up to here
              </button>
            ) : null}
            <button type="button" class="quiet" aria-pressed={asJson.value} onClick={() => (asJson.value = !asJson.value)}>
              {asJson.value ? "Fields" : "JSON"}
            </button>
          </div>
          {block.problem ? <p class="trouble">{block.problem}</p> : null}
          {asJson.value ? <pre class="code">{JSON.stringify(block.body, null, 2)}</pre> : <BlockBody block={block} />}
          {block.cut.map((cut) => (
            <p key={cut.path.join(".")} class="hint">
              {cut.path.join(".")}: {isBytes(block, cut.path) ? "the bytes of the file" : "a part"} of {bytes(cut.characters)}
              {isBytes(block, cut.path) ? ", which are not shown" : " is shown. "}
              {isBytes(block, cut.path) || all.value ? null : (
                <button
                  type="button"
                  class="quiet"
                  onClick={() => {
                    all.value = 1;
                    void fetchRow(MOST_CHARACTERS);
                  }}
                >
                  Load all
                </button>
              )}
            </p>
          ))}
        </div>
      ) : null}
    </aside>
  );
}

function isBytes(block: Row, path: (string | number)[]): boolean {
  return path.length === 1 && path[0] === "data" && field(block, "data") === "";
}

function BlockHead({ place, block }: { place: Place; block: Row }) {
  const turn = Number(block.turn_id.slice(5));
  return (
    <dl class="facts">
      {block.ref ? (
        <div>
          <dt>ref</dt>
          <dd>
            <code class="ref-text">{block.ref}</code> <Copy text={block.ref} />
          </dd>
        </div>
      ) : null}
      {block.ts ? (
        <div>
          <dt>at</dt>
          <dd>
            {clock(block.ts)} <span class="faint">{block.ts}</span>
          </dd>
        </div>
      ) : null}
      {block.turn_id ? (
        <div>
          <dt>in</dt>
          <dd>
            {block.turn_id.replace("_", " ")}
            {block.round ? (
              <>
                , <a href={linkTo(place, "prompt", turn, block.round)}>round {block.round}: its prompt</a>
              </>
            ) : null}
          </dd>
        </div>
      ) : null}
    </dl>
  );
}

function isEmpty(value: Json): boolean {
  return value === null || value === "" || (typeof value === "object" && Object.keys(value).length === 0);
}

function BlockBody({ block }: { block: Row }) {
  const body = object(block.body);
  const main = field(block, "text");
  const others = Object.entries(body).filter(([name]) => name !== "text" && name !== "data");
  const rest = Object.fromEntries(others.filter(([, value]) => !isEmpty(value)));
  const empty = others.filter(([, value]) => isEmpty(value)).map(([name]) => name);
  const failed = summarize(block).kind === "error";
  return (
    <>
      {main ? (
        WRITTEN.has(block.type) ? (
          <Markdown text={main} />
        ) : (
          <pre class={`plain ${failed ? "plain-error" : ""}`}>
            <RefText text={main} />
          </pre>
        )
      ) : null}
      {Object.keys(rest).length > 0 ? <JsonView value={rest} /> : null}
      {empty.length > 0 ? <p class="hint">empty: {empty.join(", ")}</p> : null}
      {block.body !== null && typeof block.body !== "object" ? <JsonView value={block.body} /> : null}
    </>
  );
}
