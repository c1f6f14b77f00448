// The forks of a conversation as a tree: where each left its parent, and with which model.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, readPath } from "../api";
import { isFile } from "../embedded";
import { day, quantity } from "../format";
import { linkTo } from "../route";
import { stored } from "../state";
import type { ForkRow, Place } from "../types";

export function ForkTree({ place }: { place: Place }) {
  const rows = useSignal<ForkRow[]>([]);
  const total = stored.value?.total ?? 0;

  useEffect(() => {
    if (isFile) return;
    let left = false;
    get<{ items: ForkRow[] }>(readPath(place, "/forks"))
      .then((answer) => {
        if (!left) rows.value = answer.items;
      })
      .catch(() => {
        // The outline says what is wrong.
      });
    return () => {
      left = true;
    };
  }, [place, total]);

  if (rows.value.length < 2) return null;
  const names = new Set(rows.value.map((row) => row.conversation));
  const roots = rows.value.filter((row) => !names.has(row.parent));
  return (
    <details class="forks" open={rows.value.length <= 6}>
      <summary>{quantity(rows.value.length - 1, "fork")}</summary>
      <Branch place={place} rows={roots} all={rows.value} />
    </details>
  );
}

function Branch({ place, rows, all }: { place: Place; rows: ForkRow[]; all: ForkRow[] }) {
  return (
    <ul class="fork-branch">
      {rows.map((row) => {
        const inner = all.filter((item) => item.parent === row.conversation);
        return (
          <li key={row.conversation}>
            <Fork place={place} row={row} />
            {inner.length > 0 ? <Branch place={place} rows={inner} all={all} /> : null}
          </li>
        );
      })}
    </ul>
  );
}

function Fork({ place, row }: { place: Place; row: ForkRow }) {
  const own = { ...place, conversation: row.conversation };
  const turn = Number(row.turn_id.slice(5));
  const isHere = row.conversation === place.conversation;
  return (
    <p class="fork">
      <a href={linkTo(own, "overview")} aria-current={isHere ? "true" : undefined}>
        {row.conversation}
      </a>
      {row.parent ? (
        <span class="faint">
          from block {row.seq}
          {row.model ? `, goes on with ${row.model}` : ""}
        </span>
      ) : null}
      <span class="faint">
        {quantity(row.turns, "turn")}, {day(row.last_activity_at)}
      </span>
      {row.parent && row.round > 0 ? (
        <a class="quiet" href={linkTo({ ...place, conversation: row.parent }, "prompt", turn, row.round, "beside", row.conversation)}>
          Compare
        </a>
      ) : null}
    </p>
  );
}
