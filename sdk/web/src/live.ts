// A conversation as it goes on: blocks when they are stored, and texts while they are written.

import { signal } from "@preact/signals";
import { listen, pathOf, Refusal } from "./api";
import type { BlockCache } from "./blocks";
import { number, text } from "./bodies";
import { rowOf } from "./turns";
import type { LiveEvent } from "./types";

const RETRY_MILLISECONDS = 1_000;
const LONGEST_RETRY = 10_000;
const CHANNELS = ["thinking", "notes", "draft", "answer"];
/** The blocks that replace what a channel has streamed. */
const REPLACED = new Set(["react.decision", "react.thinking", "react.notes", "assistant.completion", "react.draft", "react.exit"]);

/** Follows a conversation, and adds its new blocks to a cache. It connects again behind the last block if it is cut off. */
export class LiveFeed {
  /** The texts that are being written, by channel. */
  readonly streamed = signal<Record<string, string>>({});
  /** What running calls report, by call id; the empty id is that of the turn. */
  readonly progress = signal<Record<string, string>>({});
  readonly connected = signal(true);
  /** Why the server does not let the page follow the conversation, or nothing. */
  readonly problem = signal("");
  private readonly abort = new AbortController();
  private waiting: Record<string, string> | null = null;

  constructor(private readonly cache: BlockCache) {}

  /** Listen until the feed is closed. */
  async run(): Promise<void> {
    let wait = RETRY_MILLISECONDS;
    while (!this.abort.signal.aborted) {
      const path = `${pathOf(this.cache.place, "/events")}?after=${this.cache.head.value}`;
      try {
        for await (const event of listen(path, this.abort.signal)) {
          this.connected.value = true;
          wait = RETRY_MILLISECONDS;
          this.take(event);
        }
      } catch (error) {
        if (error instanceof DOMException && error.name === "AbortError") return;
        if (error instanceof Refusal && error.status < 500 && error.status !== 429) {
          this.problem.value = error.message;
          return;
        }
        this.connected.value = false;
      }
      this.show({});
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, LONGEST_RETRY);
    }
  }

  close(): void {
    this.abort.abort();
  }

  private take(event: LiveEvent): void {
    const { data } = event;
    if (number(data["seq"]) > 0) {
      const row = rowOf(data);
      this.cache.add([row]);
      if (REPLACED.has(row.type)) this.show({});
      if (row.type === "react.exit" || row.type === "react.tool.result") this.progress.value = {};
      return;
    }
    const channel = text(data["channel"]);
    switch (event.event) {
      case "delta":
        if (CHANNELS.includes(channel)) {
          const streamed = this.waiting ?? this.streamed.value;
          this.show({ ...streamed, [channel]: (streamed[channel] ?? "") + text(data["text"]) });
        }
        break;
      case "reset": {
        this.show({ ...(this.waiting ?? this.streamed.value), [channel]: "" });
        break;
      }
      case "progress":
        this.progress.value = { ...this.progress.value, [text(data["call_id"])]: text(data["text"]) };
        break;
      case "missed":
        void this.cache.fetchNew();
        break;
      default:
    }
  }

  /** Show the texts with the next picture of the screen, so that fast deltas cost one layout. */
  private show(texts: Record<string, string>): void {
    const isWaiting = this.waiting !== null;
    this.waiting = texts;
    if (isWaiting) return;
    requestAnimationFrame(() => {
      this.streamed.value = this.waiting ?? {};
      this.waiting = null;
    });
  }
}
