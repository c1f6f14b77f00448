// Runs a round again in a fork, with another model, other settings or other instructions, and shows it beside the recorded one.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, pathOf, post } from "../api";
import { linkTo } from "../route";
import { refreshStored } from "../state";
import type { JsonObject, Place, Prompt } from "../types";

const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/** Where the instructions of a bundle end in a system text. */
const END = "\n\nBundle: ";

export function RerunForm({ place, prompt }: { place: Place; prompt: Prompt }) {
  const recorded = prompt.system.includes(END) ? prompt.system.slice(0, prompt.system.indexOf(END)) : "";
  const roles = useSignal<Record<string, string>>({});
  const model = useSignal("");
  const temperature = useSignal("");
  const effort = useSignal("");
  const instructions = useSignal(recorded);
  const effects = useSignal(false);
  const problem = useSignal("");
  const runs = useSignal(false);
  const turn = Number(prompt.turn_id.slice(5));

  useEffect(() => {
    get<Record<string, string>>(pathOf(place, "/models"))
      .then((answer) => (roles.value = answer))
      .catch(() => (roles.value = {}));
  }, [place]);

  async function run() {
    problem.value = "";
    runs.value = true;
    try {
      const settings: JsonObject = {};
      if (temperature.value.trim() !== "") settings["temperature"] = Number(temperature.value);
      if (effort.value !== "") settings["reasoning_effort"] = effort.value;
      const changed = instructions.value.trim() === recorded.trim() ? "" : instructions.value;
      const body = { model: model.value.trim(), settings, instructions: changed, effects: effects.value };
      const path = pathOf(place, `/turns/${prompt.turn_id}/rounds/${prompt.round}/rerun`);
      const fork = await post<{ conversation_id: string }>(path, body);
      await refreshStored();
      location.hash = linkTo(place, "prompt", turn, prompt.round, "beside", fork.conversation_id);
    } catch (error) {
      problem.value = error instanceof Error ? error.message : String(error);
    }
    runs.value = false;
  }

  return (
    <form
      class="rerun"
      aria-label="Run this round again"
      onSubmit={(event) => {
        event.preventDefault();
        void run();
      }}
    >
      <p class="hint">The round runs in a fork. This conversation stays as it is.</p>
      <div class="rerun-fields">
        <label class="labelled">
          Model
          <input
            type="text"
            list="models"
            placeholder={`${prompt.model}, as recorded`}
            value={model.value}
            onInput={(event) => (model.value = event.currentTarget.value)}
          />
          <datalist id="models">
            {Object.entries(roles.value).map(([role, name]) => (
              <option key={role} value={role} label={name} />
            ))}
          </datalist>
        </label>
        <label class="labelled">
          Temperature
          <input
            type="text"
            inputMode="decimal"
            pattern="[0-9]*[.]?[0-9]*"
            placeholder="unchanged"
            value={temperature.value}
            onInput={(event) => (temperature.value = event.currentTarget.value)}
          />
        </label>
        <label class="labelled">
          Reasoning effort
          <select value={effort.value} onChange={(event) => (effort.value = event.currentTarget.value)}>
            <option value="">unchanged</option>
            {EFFORTS.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
      </div>
      <label class="labelled">
        Instructions
        <textarea
          class="editor"
          rows={Math.min(10, Math.max(3, instructions.value.split("\n").length))}
          value={instructions.value}
          onInput={(event) => (instructions.value = event.currentTarget.value)}
        />
      </label>
      <div class="rerun-foot">
        <label class="check">
          <input type="checkbox" checked={effects.value} onChange={(event) => (effects.value = event.currentTarget.checked)} />
          Calls may change things. Without this only calls that read run.
        </label>
        <span class="grow" />
        <button type="submit" class="primary" disabled={runs.value}>
          {runs.value ? "Starting" : "Run in a fork"}
        </button>
      </div>
      {problem.value ? (
        <p class="trouble" role="alert">
          {problem.value}
        </p>
      ) : null}
    </form>
  );
}
