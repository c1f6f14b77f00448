// The search in a conversation: a worker looks through all its blocks, and the reader steps from one to the next.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { get, readPath, savedKey } from "../api";
import { count } from "../format";
import { isFile } from "../embedded";
import { startWorker } from "../workers";
import type { SearchReport, SearchRequest } from "../search.worker";
import { matches } from "../matching";
import type { Place, WindowAnswer } from "../types";

const CHARACTERS = 20_000;
const WAIT_MILLISECONDS = 250;

export function FindBar({ place, head, onShow }: { place: Place; head: number; onShow: (seq: number) => void }) {
  const words = useSignal("");
  const report = useSignal<SearchReport | null>(null);
  const at = useSignal(-1);
  const worker = useRef<Worker | null>(null);
  const timer = useRef(0);

  useEffect(() => () => worker.current?.terminate(), []);

  function begin() {
    window.clearTimeout(timer.current);
    report.value = null;
    at.value = -1;
    if (words.value.trim().length < 2) return;
    timer.current = window.setTimeout(() => {
      if (isFile) {
        void searchFile(place, head, words.value).then((answer) => {
          report.value = answer;
        });
        return;
      }
      worker.current ??= startWorker();
      worker.current.onmessage = (message: MessageEvent<SearchReport>) => {
        report.value = message.data;
      };
      const address = new URL(`../${readPath(place, "/window", { characters: CHARACTERS })}`, document.baseURI).href;
      const request: SearchRequest = { address, key: savedKey(), head, words: words.value };
      worker.current.postMessage(request);
    }, WAIT_MILLISECONDS);
  }

  function step(by: number) {
    const found = report.value?.found ?? [];
    if (found.length === 0) return;
    at.value = at.value < 0 ? (by > 0 ? 0 : found.length - 1) : (at.value + by + found.length) % found.length;
    const seq = found[at.value];
    if (seq !== undefined) onShow(seq);
  }

  const state = report.value;
  return (
    <form
      class="find"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        step(1);
      }}
    >
      <input
        type="search"
        aria-label="Search in this conversation"
        placeholder={`Search ${count(head)} blocks`}
        disabled={head === 0}
        value={words.value}
        onInput={(event) => {
          words.value = event.currentTarget.value;
          begin();
        }}
      />
      <span class="find-count" role="status">
        {state === null
          ? ""
          : state.problem ||
            `${at.value >= 0 ? `${at.value + 1} of ` : ""}${count(state.found.length)}${state.done ? "" : ` · ${Math.round((100 * state.searched) / Math.max(head, 1))} %`}`}
      </span>
      <button type="button" class="quiet" aria-label="Previous" disabled={!state?.found.length} onClick={() => { step(-1); }}>
        ↑
      </button>
      <button type="submit" class="quiet" aria-label="Next" disabled={!state?.found.length}>
        ↓
      </button>
    </form>
  );
}

/** Search in a file, which has no worker: window by window, with a pause between two. */
async function searchFile(place: Place, head: number, text: string): Promise<SearchReport> {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found: number[] = [];
  for (let after = 0; after < head; after += 500) {
    const answer = await get<WindowAnswer>(readPath(place, "/window", { after, limit: 500 }));
    for (const row of answer.rows) if (matches(row, words)) found.push(row.seq);
    await new Promise((resolve) => setTimeout(resolve));
  }
  return { found, searched: head, done: true, problem: "" };
}
