// What a ref names, read from the conversation, beside the view.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { post, readPath } from "../api";
import { troubleOf, type Trouble } from "../blocks";
import { count } from "../format";
import { Markdown } from "../markdown";
import { Copy, openRef, RefText } from "../refs";
import type { Place, ReadItem } from "../types";
import { TroubleNote } from "./trouble";

export function ReadingPanel({ place }: { place: Place }) {
  const name = openRef.value;
  const item = useSignal<ReadItem | null>(null);
  const trouble = useSignal<Trouble | null>(null);
  const close = useRef<HTMLButtonElement>(null);
  const before = useRef<Element | null>(null);

  useEffect(() => {
    if (name === null) return;
    before.current = document.activeElement;
    item.value = null;
    trouble.value = null;
    close.current?.focus();
    let left = false;
    post<{ items: ReadItem[] }>(readPath(place, "/read"), { refs: [name] })
      .then((answer) => {
        if (!left) item.value = answer.items[0] ?? null;
      })
      .catch((error: unknown) => {
        if (!left) trouble.value = troubleOf(error);
      });
    return () => {
      left = true;
    };
  }, [name, place]);

  if (name === null) return null;
  const read = item.value;
  const leave = () => {
    openRef.value = null;
    if (before.current instanceof HTMLElement) before.current.focus();
  };
  return (
    <div
      class="panel reading"
      role="dialog"
      aria-label={`What ${name} names`}
      onKeyDown={(event) => {
        if (event.key === "Escape") leave();
      }}
    >
      <header class="panel-head">
        <h2>{read === null || read.title === "" ? "Read" : read.title}</h2>
        <button type="button" class="quiet" ref={close} onClick={leave} aria-label="Close what was read">
          ✕
        </button>
      </header>
      <div class="panel-body">
        <p class="facts-line">
          <code class="ref-text">{name}</code> <Copy text={name} />
        </p>
        {trouble.value ? <TroubleNote trouble={trouble.value} /> : null}
        {read === null && trouble.value === null ? <p class="hint">Loading…</p> : null}
        {read !== null ? <ReadText item={read} /> : null}
      </div>
    </div>
  );
}

function ReadText({ item }: { item: ReadItem }) {
  if (item.status === "missing" || item.status === "gone") return <p class="trouble">{item.message || "It does not exist."}</p>;
  return (
    <>
      <p class="hint">
        {item.mime} · {count(item.text.length)} characters{item.status === "cut" ? " of a longer text" : ""}
        {item.message ? ` · ${item.message}` : ""}
      </p>
      {item.mime === "text/markdown" ? (
        <Markdown text={item.text} />
      ) : (
        <pre class="plain">
          <RefText text={item.text} />
        </pre>
      )}
    </>
  );
}
