// The form that answers a question of a call, with a field for each value of the answer.

import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { answerOf, fieldsOf, type AnswerField } from "../answers";
import type { Json } from "../types";

interface FormProps {
  /** The JSON Schema of the answer, null if any text answers. */
  form: Json;
  /** Whether the answer is the result of a call that the client runs. */
  isResult: boolean;
  onAnswer: (value: Json) => void;
}

export function AnswerForm({ form, isResult, onAnswer }: FormProps) {
  const fields = useMemo(() => {
    const [first, ...others] = fieldsOf(form);
    if (first?.name !== "") return fieldsOf(form);
    return [{ ...first, label: isResult ? "Result" : "Answer", kind: form === null && !isResult ? ("text" as const) : first.kind }, ...others];
  }, [form, isResult]);
  const texts = useSignal(fields.map((field) => field.initial));
  const problem = useSignal("");

  function write(n: number, value: string) {
    texts.value = texts.value.map((before, m) => (m === n ? value : before));
  }

  return (
    <form
      class="answer-form"
      onSubmit={(event) => {
        event.preventDefault();
        try {
          onAnswer(answerOf(fields, texts.value));
          problem.value = "";
        } catch (error) {
          problem.value = error instanceof Error ? error.message : String(error);
        }
      }}
    >
      {fields.map((field, n) => (
        <label key={n} class="answer-field">
          <span>
            {field.label}
            {field.isRequired ? "" : " (optional)"}
          </span>
          <Control
            field={field}
            value={texts.value[n] ?? ""}
            onWrite={(value) => {
              write(n, value);
            }}
          />
          {field.description ? <span class="faint">{field.description}</span> : null}
        </label>
      ))}
      {problem.value ? (
        <p class="trouble" role="alert">
          {problem.value}
        </p>
      ) : null}
      <div class="waiting-form answer-foot">
        <button
          type="button"
          onClick={() => {
            onAnswer(isResult ? { error: "The client did not run this call." } : null);
          }}
        >
          Decline
        </button>
        <button type="submit" class="primary">
          Answer
        </button>
      </div>
    </form>
  );
}

function Control({ field, value, onWrite }: { field: AnswerField; value: string; onWrite: (value: string) => void }) {
  switch (field.kind) {
    case "yes or no":
    case "choice": {
      const options = field.kind === "choice" ? field.choices.map((choice, n) => [String(n), choice.label]) : [["true", "yes"], ["false", "no"]];
      return (
        <select value={value} onChange={(event) => { onWrite(event.currentTarget.value); }}>
          <option value="">Choose</option>
          {options.map(([written, label]) => (
            <option key={written} value={written}>
              {label}
            </option>
          ))}
        </select>
      );
    }
    case "json":
    case "json or text":
      return (
        <textarea
          class="editor"
          rows={2}
          spellcheck={false}
          placeholder={field.kind === "json" ? "JSON" : "JSON or text"}
          value={value}
          onInput={(event) => { onWrite(event.currentTarget.value); }}
        />
      );
    default:
      return (
        <input
          type="text"
          inputMode={field.kind === "number" ? "decimal" : "text"}
          value={value}
          onInput={(event) => { onWrite(event.currentTarget.value); }}
        />
      );
  }
}
