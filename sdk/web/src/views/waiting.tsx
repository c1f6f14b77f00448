// A call that waits for the reader: an approval, whose arguments can be edited, or a question of a tool.

import { useSignal, type Signal } from "@preact/signals";
import { field, number, object } from "../bodies";
import { JsonView } from "../json";
import type { Json, JsonObject, Row } from "../types";
import type { ChatActions } from "./chatitem";

export function Waiting({ row, call, actions }: { row: Row; call: Row; actions: ChatActions }) {
  const kind = field(row, "kind") || "question";
  const form = object(row.body)["form"] ?? null;
  const isOfClient = object(row.body)["client"] === true;
  const people = number(object(row.body)["people"]);
  const question = (
    <p class="waiting-question">
      {isOfClient ? "A client runs this tool, and sends the result." : field(row, "question")}
      {people > 1 ? <span class="tag">{people} people must approve</span> : null}
    </p>
  );
  if (!actions.writable) return question;
  const isYesOrNo = kind === "approval" || (row.type === "react.tool.question" && form === null);
  return (
    <div class="waiting">
      {question}
      {isYesOrNo ? (
        <Approval row={row} call={call} actions={actions} editable={kind === "approval" && row.type === "react.tool.pending"} />
      ) : (
        <Question row={row} actions={actions} isJson={isOfClient} />
      )}
    </div>
  );
}

function Question({ row, actions, isJson }: { row: Row; actions: ChatActions; isJson: boolean }) {
  const text = useSignal("");
  return (
    <form
      class="waiting-form"
      onSubmit={(event) => {
        event.preventDefault();
        actions.answer(field(row, "call_id"), isJson ? jsonOr(text.value) : text.value, false);
      }}
    >
      <input
        type="text"
        aria-label={isJson ? "Result" : "Answer"}
        placeholder={isJson ? "Its result, as JSON or text" : "Answer"}
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
        }}
      />
      <button type="submit" class="primary">
        Answer
      </button>
    </form>
  );
}

interface ApprovalProps {
  row: Row;
  call: Row;
  actions: ChatActions;
  editable: boolean;
}

const RULES: [string, string][] = [
  ["", "ask again next time"],
  ["same", "do not ask again for these arguments in this conversation"],
  ["any", "do not ask again for this tool in this conversation"],
];

function Approval({ row, call, actions, editable }: ApprovalProps) {
  const given = object(call.body)["arguments"] ?? null;
  const reason = useSignal("");
  const edited = useSignal<string | null>(null);
  const rule = useSignal("");
  const problem = useSignal("");

  function approve() {
    const parsed = parseArguments(edited.value);
    if (parsed === null) {
      problem.value = "The arguments are not a JSON object.";
      return;
    }
    const extra: JsonObject = { ...parsed, ...(rule.value ? { rule: { scope: "conversation", arguments: rule.value } } : {}) };
    send(Object.keys(extra).length > 0 ? { approved: true, ...extra } : true);
  }

  function send(value: Json) {
    problem.value = "";
    actions.answer(field(row, "call_id"), value, field(row, "kind") === "approval");
  }

  return (
    <>
      {edited.value === null ? <JsonView value={given} /> : <Editor text={edited} />}
      {problem.value ? <p class="trouble">{problem.value}</p> : null}
      {editable ? (
        <div class="waiting-form waiting-more">
          <button
            type="button"
            class="quiet"
            aria-pressed={edited.value !== null}
            onClick={() => (edited.value = edited.value === null ? JSON.stringify(given, null, 2) : null)}
          >
            Edit the arguments
          </button>
          <select aria-label="The next call" value={rule.value} onChange={(event) => (rule.value = event.currentTarget.value)}>
            {RULES.map(([value, label]) => (
              <option key={value} value={value}>
                {label}
              </option>
            ))}
          </select>
        </div>
      ) : null}
      <div class="waiting-form">
        <input
          type="text"
          aria-label="Reason"
          placeholder="Reason, if you deny"
          value={reason.value}
          onInput={(event) => {
            reason.value = event.currentTarget.value;
          }}
        />
        <button
          type="button"
          onClick={() => {
            send(reason.value ? { approved: false, reason: reason.value } : false);
          }}
        >
          Deny
        </button>
        <button type="button" class="primary" onClick={approve}>
          Approve
        </button>
      </div>
    </>
  );
}

/** Return the value of a JSON text, or the text itself if it is not JSON. */
function jsonOr(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return text;
  }
}

function Editor({ text }: { text: Signal<string | null> }) {
  return (
    <textarea
      class="editor"
      aria-label="Arguments"
      rows={Math.min(12, (text.value ?? "").split("\n").length)}
      spellcheck={false}
      value={text.value ?? ""}
      onInput={(event) => {
        text.value = event.currentTarget.value;
      }}
    />
  );
}

/** Return the edited arguments as a part of the answer: nothing in it if they were not edited, null if they are not valid. */
function parseArguments(text: string | null): JsonObject | null {
  if (text === null) return {};
  try {
    const value = JSON.parse(text) as Json;
    return typeof value === "object" && value !== null && !Array.isArray(value) ? { arguments: value } : null;
  } catch {
    return null;
  }
}
