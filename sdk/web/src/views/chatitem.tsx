// One item of a chat.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { argumentsLine, charactersCut, field, list, number, object, text } from "../bodies";
import { count, dollars, duration, quantity, short } from "../format";
import { JsonView } from "../json";
import { Markdown, Outside, webAddress } from "../markdown";
import { openRef, RefLink, RefText } from "../refs";
import { linkTo } from "../route";
import { summarize } from "../summaries";
import { planSteps, type CallItem, type ChatActions, type ChatItem, type EndItem, type MessageItem, type StepItem } from "../turns";
import type { JsonObject, Row } from "../types";
import { FileItemView } from "./file";
import { Waiting } from "./waiting";

export function ChatItemView({ item, actions }: { item: ChatItem; actions: ChatActions }): ComponentChildren {
  switch (item.kind) {
    case "message":
      return <Message item={item} actions={actions} />;
    case "thinking":
      return (
        <details class="thinking">
          <summary>Thinking</summary>
          <Markdown text={field(item.row, "text")} />
        </details>
      );
    case "notes":
      return (
        <div class="notes">
          <Markdown text={field(item.row, "text")} />
        </div>
      );
    case "draft":
      return (
        <details class="thinking">
          <summary>A draft that was held back: {field(item.row, "reason")}</summary>
          <Markdown text={field(item.row, "text")} />
        </details>
      );
    case "plan":
      return <Plan row={item.row} />;
    case "call":
      return <Call item={item} actions={actions} />;
    case "step":
      return <Step item={item} />;
    case "file":
      return <FileItemView place={actions.place} row={item.row} name={field(item.row, "path")} />;
    case "answer":
      return <Answer row={item.row} actions={actions} />;
    case "note":
      return <Note row={item.row} problem={item.problem} />;
    case "end":
      return <End item={item} actions={actions} />;
  }
}

function Message({ item, actions }: { item: MessageItem; actions: ChatActions }) {
  const { row } = item;
  const label = row.type === "user.steer" ? "steer" : row.type === "user.followup" ? "added" : "";
  return (
    <div class="message">
      <div class={`bubble ${item.recalled ? "recalled" : ""}`}>
        {label || item.recalled ? <span class="tag">{item.recalled ? "taken back" : label}</span> : null}
        <Markdown text={field(row, "text")} />
        {item.files.map((file) => (
          <FileItemView key={file.seq} place={actions.place} row={file} name={field(file, "name")} />
        ))}
      </div>
      <div class="item-tools">
        <a class="quiet" href={linkTo(actions.place, "timeline", row.seq)}>
          Inspect
        </a>
        {actions.writable && row.type === "user.prompt" ? (
          <button
            type="button"
            class="quiet"
            onClick={() => {
              actions.fork(row.seq, field(row, "text"));
            }}
          >
            Edit in a fork
          </button>
        ) : null}
      </div>
    </div>
  );
}

const MARKS: Record<string, string> = { done: "✓", failed: "✗", in_progress: "…", pending: "○" };

function Plan({ row }: { row: Row }) {
  const steps = planSteps(row);
  const done = steps.filter((step) => step.status === "done").length;
  return (
    <div class="plan">
      <p class="plan-head">
        Plan <span class="faint">{done} of {steps.length}</span>
      </p>
      <ol>
        {steps.map((step, n) => (
          <li key={n} class={`step-${step.status}`}>
            <span class="step-mark" role="img" aria-label={step.status.replace("_", " ")}>
              {MARKS[step.status] ?? "○"}
            </span>
            <span>{step.text}</span>
          </li>
        ))}
      </ol>
    </div>
  );
}

function Step({ item }: { item: StepItem }) {
  const { start, end } = item;
  const status = end ? field(end, "status") || "ok" : "running";
  const value = end ? field(end, "value") || field(end, "error") : "";
  return (
    <details class={`call call-${status}`}>
      <summary class="call-head">
        <span class="call-mark" aria-hidden="true" />
        <span class="call-tool">{field(start, "name")}</span>
        <span class="call-arguments">step {value.slice(0, 200)}</span>
        <span class="call-status">{end && status === "ok" ? duration(number(object(end.body)["elapsed_ms"])) : status}</span>
      </summary>
      <div class="call-body">
        <pre class={`plain ${status === "ok" ? "" : "plain-error"}`}>
          <RefText text={value} />
        </pre>
        <p class="item-tools">
          <RefLink name={start.ref} />
        </p>
      </div>
    </details>
  );
}

/** Return the state of a call in a word. */
function statusOf(item: CallItem): string {
  if (item.late) return object(item.late.body)["ok"] === false ? "error" : "ok";
  if (item.background) return "in the background";
  if (item.result) return field(item.result, "status") || "ok";
  if (item.answered) return "answered";
  return (item.pending ?? item.question) ? "waits" : "running";
}

function Call({ item, actions }: { item: CallItem; actions: ChatActions }) {
  const chosen = useSignal<boolean | null>(null);
  const isOpen = chosen.value ?? actions.opensCalls;
  const body = object(item.call.body);
  const callId = text(body["call_id"]);
  const result = item.result;
  const status = statusOf(item);
  const waiting = result === null && !item.answered ? (item.pending ?? item.question) : null;
  const elapsed = result ? number(object(result.body)["elapsed_ms"]) : 0;
  return (
    <div class={`call call-${status.replaceAll(" ", "-")}`}>
      <button type="button" class="call-head" aria-expanded={isOpen} onClick={() => (chosen.value = !isOpen)}>
        <span class="call-mark" aria-hidden="true" />
        <span class="call-tool">{text(body["tool"])}</span>
        <span class="call-arguments">{argumentsLine(body["arguments"]).slice(0, 200)}</span>
        <span class="call-status">{status === "ok" ? (elapsed ? duration(elapsed) : "") : (actions.progress[callId] ?? status)}</span>
      </button>
      {waiting ? <Waiting row={waiting} item={item} actions={actions} /> : null}
      {isOpen ? (
        <div class="call-body">
          <JsonView value={body["arguments"] ?? null} />
          {result ? <ResultText row={result} /> : null}
          {item.late ? <ResultText row={item.late} /> : null}
          <p class="item-tools">
            <RefLink name={item.call.ref} />
            {item.child ? (
              <a class="quiet" href={linkTo({ ...actions.place, conversation: item.child }, "overview")}>
                Child run
              </a>
            ) : null}
            <a class="quiet" href={linkTo(actions.place, "timeline", item.call.seq)}>
              Inspect
            </a>
          </p>
        </div>
      ) : null}
    </div>
  );
}

function ResultText({ row }: { row: Row }) {
  const cut = charactersCut(row, "text");
  return (
    <>
      <pre class={`plain ${(field(row, "status") || "ok") === "ok" ? "" : "plain-error"}`}>
        <RefText text={field(row, "text")} />
      </pre>
      {cut ? (
        <p class="hint">
          A part of {count(cut)} characters. <RefLink name={row.ref} />
        </p>
      ) : null}
    </>
  );
}

const CITATION = /\[\[S:([0-9, -]{1,60})\]\]/g;

function Answer({ row, actions }: { row: Row; actions: ChatActions }) {
  const body = object(row.body);
  const used = list(body["sources_used"]).map(number);
  const flag = text(body["flag"]);
  return (
    <div class="answer">
      {flag ? <span class="tag">{flag}</span> : null}
      <Markdown text={field(row, "text")} inline={(part) => <Cited text={part} sources={actions.sources} />} />
      {charactersCut(row, "text") ? (
        <p class="hint">
          A part of {count(charactersCut(row, "text"))} characters. <RefLink name={row.ref} />
        </p>
      ) : null}
      {used.length > 0 ? (
        <ol class="sources" aria-label="Sources">
          {used.map((sid) => (
            <li key={sid} value={sid}>
              <SourceName sid={sid} source={actions.sources.get(sid)} />
            </li>
          ))}
        </ol>
      ) : null}
    </div>
  );
}

function SourceName({ sid, source }: { sid: number; source: JsonObject | undefined }) {
  const title = text(source?.["title"]) || text(source?.["path"]) || text(source?.["url"]) || `source ${sid}`;
  const url = text(source?.["url"]);
  const lines = list(source?.["lines"]).map(number);
  return (
    <>
      {webAddress(url) ? <Outside href={url}>{title}</Outside> : <span>{title}</span>}
      {lines.length === 2 ? <span class="faint"> lines {lines[0]} to {lines[1]}</span> : null} <RefLink name={`so:sources_pool[${sid}]`} />
    </>
  );
}

function Cited({ text: part, sources }: { text: string; sources: Map<number, JsonObject> }): ComponentChildren {
  const parts: ComponentChildren[] = [];
  let end = 0;
  for (const match of part.matchAll(CITATION)) {
    parts.push(<RefText key={`t${end}`} text={part.slice(end, match.index)} />);
    for (const sid of sidsOf(match[1] ?? "")) parts.push(<Citation key={`${match.index}-${sid}`} sid={sid} source={sources.get(sid)} />);
    end = match.index + match[0].length;
  }
  parts.push(<RefText key={`t${end}`} text={part.slice(end)} />);
  return <>{parts}</>;
}

function sidsOf(numbers: string): number[] {
  const sids: number[] = [];
  for (const piece of numbers.split(",")) {
    const [from = 0, to = from] = piece.split("-").map((item) => Number(item.trim()));
    for (let sid = from; sid <= to && sids.length < 20; sid += 1) if (sid > 0) sids.push(sid);
  }
  return sids;
}

function Citation({ sid, source }: { sid: number; source: JsonObject | undefined }) {
  const card = useRef<HTMLSpanElement>(null);
  const lines = list(source?.["lines"]).map(number);

  function show(event: Event) {
    const element = card.current;
    const anchor = event.currentTarget;
    if (!element || !(anchor instanceof HTMLElement)) return;
    element.showPopover();
    const place = anchor.getBoundingClientRect();
    const box = element.getBoundingClientRect();
    const left = Math.max(8, Math.min(place.left, innerWidth - box.width - 8));
    const above = place.top - box.height - 4;
    element.style.left = `${left}px`;
    element.style.top = `${above > 8 ? above : place.bottom + 4}px`;
  }

  function hide() {
    card.current?.hidePopover();
  }

  return (
    <>
      <button
        type="button"
        class="cite-number"
        aria-label={`Source ${sid}`}
        onMouseEnter={show}
        onMouseLeave={hide}
        onFocus={show}
        onBlur={hide}
        onClick={() => {
          openRef.value = `so:sources_pool[${sid}]`;
        }}
      >
        {sid}
      </button>
      {source ? (
        <span role="tooltip" popover="manual" ref={card} class="cite-card">
          <strong>{text(source["title"]) || text(source["path"]) || text(source["url"])}</strong>
          {lines.length === 2 ? <span class="faint"> lines {lines[0]} to {lines[1]}</span> : null}
          <span class="cite-text">{text(source["text"]).slice(0, 700)}</span>
        </span>
      ) : null}
    </>
  );
}

function Note({ row, problem }: { row: Row; problem: boolean }) {
  const { label, line } = summarize(row);
  return (
    <details class={`note ${problem ? "note-problem" : ""}`}>
      <summary>
        {label}: {line.slice(0, 140)}
      </summary>
      <Markdown text={line} />
    </details>
  );
}

function End({ item, actions }: { item: EndItem; actions: ChatActions }) {
  const { row, spent } = item;
  const reason = field(row, "reason");
  const elapsed = number(object(row.body)["elapsed_ms"]);
  const facts = [
    reason === "complete" ? "" : reason.replace("_", " "),
    quantity(number(object(row.body)["rounds"]), "round"),
    elapsed ? duration(elapsed) : "",
    spent.input ? `${short(spent.input)} in` : "",
    spent.cached ? `${short(spent.cached)} cached` : "",
    spent.output ? `${short(spent.output)} out` : "",
    dollars(spent.cost),
  ].filter(Boolean);
  return (
    <div class={`end ${reason === "complete" ? "" : "end-other"}`}>
      {field(row, "error") ? <p class="trouble">{field(row, "error")}</p> : null}
      <p class="end-facts">
        <span>{facts.join(" · ")}</span>
        <a class="quiet" href={linkTo(actions.place, "prompt", Number(row.turn_id.slice(5)), Math.max(1, number(object(row.body)["rounds"])))}>
          Prompt
        </a>
        {actions.writable ? (
          <>
            <Rate value="ok" mark="Good" label="Good answer" item={item} actions={actions} />
            <Rate value="not_ok" mark="Bad" label="Bad answer" item={item} actions={actions} />
          </>
        ) : item.reaction ? (
          <span class="tag">{item.reaction}</span>
        ) : null}
      </p>
    </div>
  );
}

function Rate({ value, mark, label, item, actions }: { value: string; mark: string; label: string; item: EndItem; actions: ChatActions }) {
  const pressed = item.reaction === value;
  return (
    <button
      type="button"
      class="quiet rate"
      aria-label={label}
      aria-pressed={pressed}
      onClick={() => {
        actions.rate(item.row.turn_id, pressed ? null : value);
      }}
    >
      {mark}
    </button>
  );
}
