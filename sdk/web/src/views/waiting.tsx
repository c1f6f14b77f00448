// A call that waits for the reader: an approval, or a question of a tool.

import { useSignal } from "@preact/signals";
import { field, object } from "../bodies";
import { JsonView } from "../json";
import type { Row } from "../types";
import type { ChatActions } from "./chatitem";

export function Waiting({ row, call, actions }: { row: Row; call: Row; actions: ChatActions }) {
  const reason = useSignal("");
  const sent = useSignal(false);
  const kind = field(row, "kind") || "question";
  const callId = field(row, "call_id");
  const form = object(row.body)["form"] ?? null;
  const isYesOrNo = kind === "approval" || (row.type === "react.tool.question" && form === null);

  if (!actions.writable) return <p class="waiting-question">{field(row, "question")}</p>;

  function answer(value: boolean | string | { approved: boolean; reason: string }) {
    sent.value = true;
    actions.answer(callId, value, kind === "approval");
  }

  return (
    <div class="waiting">
      <p class="waiting-question">{field(row, "question")}</p>
      {kind === "approval" ? <JsonView value={object(call.body)["arguments"] ?? null} /> : null}
      <form
        class="waiting-form"
        onSubmit={(event) => {
          event.preventDefault();
          if (!isYesOrNo) answer(reason.value);
        }}
      >
        <input
          type="text"
          aria-label={isYesOrNo ? "Reason" : "Answer"}
          placeholder={isYesOrNo ? "Reason, if you deny" : "Answer"}
          value={reason.value}
          onInput={(event) => {
            reason.value = event.currentTarget.value;
          }}
        />
        {isYesOrNo ? (
          <>
            <button type="button" disabled={sent.value} onClick={() => { answer(reason.value ? { approved: false, reason: reason.value } : false); }}>
              Deny
            </button>
            <button type="button" class="primary" disabled={sent.value} onClick={() => { answer(true); }}>
              Approve
            </button>
          </>
        ) : (
          <button type="submit" class="primary" disabled={sent.value}>
            Answer
          </button>
        )}
      </form>
    </div>
  );
}
