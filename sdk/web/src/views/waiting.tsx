// A call that waits for the reader: an approval, whose arguments can be edited, a question of a tool, or the result of a call
// that the client runs.

import { useSignal, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { standingOf, type Standing } from "../approvals";
import { field, object } from "../bodies";
import { quantity } from "../format";
import { JsonView } from "../json";
import { stored } from "../state";
import { peopleOf, type CallItem, type ChatActions } from "../turns";
import type { Json, JsonObject, Row } from "../types";
import { AnswerForm } from "./answerform";

export function Waiting({ row, item, actions }: { row: Row; item: CallItem; actions: ChatActions }) {
  const kind = field(row, "kind") || "question";
  const form = object(row.body)["form"] ?? null;
  const isOfClient = object(row.body)["client"] === true;
  const people = peopleOf(row);
  const standing = standingOf(item.answers, people);
  const question = (
    <>
      <p class="waiting-question">{isOfClient ? "The client runs this tool. Its answer is the result." : field(row, "question")}</p>
      {people > 1 ? <People people={people} standing={standing} owner={actions.place.user} /> : null}
    </>
  );
  const mayAnswer = actions.writable || (actions.approves && people > 1);
  if (!mayAnswer) return <div class="waiting">{question}</div>;
  const isYesOrNo = kind === "approval" || (row.type === "react.tool.question" && form === null);
  return (
    <div class="waiting">
      {question}
      {isYesOrNo ? (
        <Approval row={row} item={item} standing={standing} actions={actions} />
      ) : (
        <>
          {isOfClient ? <JsonView value={object(item.call.body)["arguments"] ?? null} /> : null}
          <AnswerForm
            form={form}
            isResult={isOfClient}
            onAnswer={(value) => {
              actions.answer(field(row, "call_id"), value, false);
            }}
          />
        </>
      )}
    </div>
  );
}

/** Who has approved a call that several people must approve, and how many are missing. */
function People({ people, standing, owner }: { people: number; standing: Standing; owner: string }) {
  const names = standing.approvedBy.map((name) => name || owner);
  const missing = people - names.length;
  return (
    <p class="waiting-people">
      <span class="tag">{people} people must approve</span>
      <span>{names.length > 0 ? `approved by ${names.join(", ")}` : "nobody has approved yet"}</span>
      <span>{missing} missing</span>
      {standing.edited ? <span>The arguments were edited: these are what all must approve.</span> : null}
    </p>
  );
}

const RULES: [string, string][] = [
  ["", "ask again next time"],
  ["same", "do not ask again for these arguments in this conversation"],
  ["any", "do not ask again for this tool in this conversation"],
];

interface ApprovalProps {
  row: Row;
  item: CallItem;
  standing: Standing;
  actions: ChatActions;
}

function Approval({ row, item, standing, actions }: ApprovalProps) {
  const given = standing.edited ?? object(item.call.body)["arguments"] ?? null;
  const isApproval = field(row, "kind") === "approval";
  const editable = isApproval && row.type === "react.tool.pending";
  const people = peopleOf(row);
  const reason = useSignal("");
  const edited = useSignal<string | null>(null);
  const rule = useSignal("");
  const problem = useSignal("");
  // The edited arguments stay in the editor until the answer is stored, because the server may refuse them.
  useEffect(() => {
    edited.value = null;
  }, [item.answers.length]);
  const hasApproved = standing.approvedBy.includes(stored.value?.user ?? "");

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
    actions.answer(field(row, "call_id"), value, isApproval);
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
          {people > 1 ? null : <RuleChoice rule={rule} />}
        </div>
      ) : null}
      {hasApproved && edited.value === null ? (
        <p class="hint">You have approved this call. It runs when {quantity(people - standing.approvedBy.length, "other person", "other people")} approve it.</p>
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
        {hasApproved && edited.value === null ? null : (
          <button type="button" class="primary" onClick={approve}>
            Approve
          </button>
        )}
      </div>
    </>
  );
}

function RuleChoice({ rule }: { rule: Signal<string> }) {
  return (
    <select aria-label="The next call" value={rule.value} onChange={(event) => (rule.value = event.currentTarget.value)}>
      {RULES.map(([value, label]) => (
        <option key={value} value={value}>
          {label}
        </option>
      ))}
    </select>
  );
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
