// The turns that run, wait or have failed, in all conversations that the reader may see, with the ways to act on them.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, pathOf, post } from "../api";
import { troubleOf, type Trouble } from "../blocks";
import { day } from "../format";
import { linkTo } from "../route";
import { JsonView } from "../json";
import { isApprover, isWritable, stored } from "../state";
import type { WaitingRow, Work, WorkRow } from "../types";
import { answerCall } from "./chat";
import { TroubleNote } from "./trouble";

const MILLISECONDS = 2_000;
const GROUPS: [WorkRow["state"], string][] = [
  ["waiting", "Waits for somebody"],
  ["running", "Runs"],
  ["queued", "Has not begun"],
  ["cut off", "Was cut off"],
  ["dead", "Was cut off too often"],
  ["failed", "Failed"],
];

export function WorkView() {
  const work = useSignal<Work | null>(null);
  const shared = useSignal<WaitingRow[]>([]);
  const trouble = useSignal<Trouble | null>(null);

  async function load() {
    try {
      work.value = await get<Work>("work");
      const waiting = await get<{ items: WaitingRow[] }>("approvals");
      shared.value = waiting.items.filter((row) => row.people > 1 && isApprover(row));
      trouble.value = null;
    } catch (error) {
      trouble.value = troubleOf(error);
    }
  }

  useEffect(() => {
    void load();
    const timer = window.setInterval(() => {
      if (document.visibilityState === "visible") void load();
    }, MILLISECONDS);
    return () => {
      window.clearInterval(timer);
    };
  }, []);

  const answer = work.value;
  return (
    <div class="work">
      <header class="work-head">
        <a class="back" href="#/" aria-label="All conversations">
          ←
        </a>
        <h1>Turns that are not done</h1>
      </header>
      {trouble.value ? <TroubleNote trouble={trouble.value} /> : null}
      {answer === null && trouble.value === null ? <p class="hint">Loading…</p> : null}
      {answer !== null && answer.items.length === 0 && shared.value.length === 0 ? (
        <p class="empty">Nothing runs, waits or has failed.</p>
      ) : null}
      {shared.value.length > 0 ? (
        <section class="work-group">
          <h2>
            Waits for another person <span class="faint">{shared.value.length}</span>
          </h2>
          <ul>
            {shared.value.map((row) => (
              <li key={JSON.stringify([row.user, row.conversation, row.call_id])}>
                <SharedCall row={row} onDone={load} />
              </li>
            ))}
          </ul>
        </section>
      ) : null}
      {GROUPS.map(([state, heading]) => (
        <Group key={state} heading={heading} rows={(answer?.items ?? []).filter((row) => row.state === state)} onDone={load} />
      ))}
      {answer?.is_complete === false ? <p class="hint">There are more conversations with unfinished turns.</p> : null}
    </div>
  );
}

function Group({ heading, rows, onDone }: { heading: string; rows: WorkRow[]; onDone: () => Promise<void> }) {
  if (rows.length === 0) return null;
  return (
    <section class="work-group">
      <h2>
        {heading} <span class="faint">{rows.length}</span>
      </h2>
      <ul>
        {rows.map((row) => (
          <li key={JSON.stringify([row.tenant, row.project, row.user, row.conversation, row.turn_id])}>
            <WorkItem row={row} onDone={onDone} />
          </li>
        ))}
      </ul>
    </section>
  );
}

/** A call of another user that several people must approve, with the ways to do so. */
function SharedCall({ row, onDone }: { row: WaitingRow; onDone: () => Promise<void> }) {
  const problem = useSignal("");
  const answer = (value: boolean) => {
    problem.value = "";
    answerCall(row, row.call_id, value, true)
      .catch((error: unknown) => {
        problem.value = error instanceof Error ? error.message : String(error);
      })
      .finally(() => void onDone());
  };
  const hasApproved = row.approved_by.includes(stored.value?.user ?? "");
  return (
    <article class="work-item">
      <div class="work-text">
        <p>{row.question}</p>
        <p class="faint">
          {row.conversation} · {row.user} · {row.tool} · {row.approved_by.length > 0 ? `approved by ${row.approved_by.join(", ")}` : "nobody has approved yet"} ·{" "}
          {row.people - row.approved_by.length} missing
        </p>
        <JsonView value={row.arguments} />
        {problem.value ? <p class="trouble">{problem.value}</p> : null}
      </div>
      <div class="work-tools">
        <button type="button" onClick={() => { answer(false); }}>
          Deny
        </button>
        {hasApproved ? null : (
          <button type="button" class="primary" onClick={() => { answer(true); }}>
            Approve
          </button>
        )}
      </div>
    </article>
  );
}

function WorkItem({ row, onDone }: { row: WorkRow; onDone: () => Promise<void> }) {
  const problem = useSignal("");
  const act = (work: () => Promise<unknown>) => {
    problem.value = "";
    work()
      .catch((error: unknown) => {
        problem.value = error instanceof Error ? error.message : String(error);
      })
      .finally(() => void onDone());
    window.setTimeout(() => void onDone(), 300);
  };
  const turn = Number(row.turn_id.slice(5));
  return (
    <article class="work-item">
      <div class="work-text">
        <a href={linkTo(row, "chat")}>{row.title || row.conversation}</a>
        <p class="faint">
          {row.conversation} · {row.user} · turn {turn} · {row.rounds ? `round ${row.rounds} · ` : ""}
          {day(row.since)}
          {row.calls.length > 0 ? ` · ${row.calls.join(", ")}` : ""}
        </p>
        {row.reason ? <p class="work-reason">{row.reason}</p> : null}
        {problem.value ? <p class="trouble">{problem.value}</p> : null}
      </div>
      <div class="work-tools">
        <Actions row={row} turn={turn} act={act} />
      </div>
    </article>
  );
}

function Actions({ row, turn, act }: { row: WorkRow; turn: number; act: (work: () => Promise<unknown>) => void }) {
  if (!isWritable(row)) return null;
  switch (row.state) {
    case "failed":
      return (
        <a class="button" href={linkTo(row, "prompt", turn)}>
          Run again
        </a>
      );
    case "cut off":
      return (
        <>
          <button type="button" onClick={() => { act(() => post(pathOf(row, "/answers"), {})); }}>
            Put back
          </button>
          <Stop row={row} act={act} />
        </>
      );
    case "dead":
      return (
        <>
          <button type="button" onClick={() => { act(() => putBack(row)); }}>
            Put back
          </button>
          <Stop row={row} act={act} />
        </>
      );
    case "waiting":
      return (
        <>
          <a class="button" href={linkTo(row, "chat")}>
            Answer
          </a>
          <Stop row={row} act={act} />
        </>
      );
    default:
      return <Stop row={row} act={act} />;
  }
}

async function putBack(row: WorkRow): Promise<void> {
  await post(pathOf(row, "/retry"), {});
  await post(pathOf(row, "/answers"), {});
}

function Stop({ row, act }: { row: WorkRow; act: (work: () => Promise<unknown>) => void }) {
  return (
    <button type="button" onClick={() => { act(() => post(pathOf(row, "/stop"), {})); }}>
      Stop
    </button>
  );
}
