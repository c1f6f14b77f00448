// The blocks of a conversation, fetched by windows of the page's need, and kept.

import { signal } from "@preact/signals";
import { get, Lost, readPath, Refusal } from "./api";
import { isFile } from "./embedded";
import type { Place, Row, WindowAnswer } from "./types";

const PAGE = 200;
const POLL_MILLISECONDS = 1_500;

/** Why a conversation cannot be shown. */
export interface Trouble {
  kind: "gone" | "refused" | "lost";
  text: string;
}

/** Return an error as trouble that the page can show. */
export function troubleOf(error: unknown): Trouble {
  if (error instanceof Lost) return { kind: "lost", text: error.message };
  if (error instanceof Refusal) {
    return { kind: error.status === 404 || error.status === 410 ? "gone" : "refused", text: error.message };
  }
  return { kind: "refused", text: String(error) };
}

/** The rows of one conversation by seq, each with texts of at most `characters`. */
export class BlockCache {
  readonly head = signal(0);
  readonly loaded = signal(false);
  readonly trouble = signal<Trouble | null>(null);
  /** Grows with each change, so that views render again. */
  readonly version = signal(0);
  private readonly rows = new Map<number, Row>();
  private readonly fetching = new Set<number>();
  private timer = 0;
  private closed = false;

  constructor(
    readonly place: Place,
    readonly characters: number,
  ) {}

  /** Return the row of a block if it is here; else fetch its window, and return nothing. */
  row(seq: number): Row | undefined {
    const row = this.rows.get(seq);
    if (row === undefined && seq >= 1 && seq <= this.head.value) {
      void this.fetchPage(Math.floor((seq - 1) / PAGE));
    }
    return row;
  }

  /** Return the row of a block if it is here. */
  peek(seq: number): Row | undefined {
    return this.rows.get(seq);
  }

  /** Fetch the length of the conversation, and its first or its last window. */
  async open(last: boolean): Promise<void> {
    try {
      const first = await this.window(0, last ? 1 : PAGE);
      this.head.value = first.head;
      this.add(first.rows);
      if (last && first.head > 1) {
        const after = Math.max(0, first.head - PAGE);
        this.add((await this.window(after, PAGE)).rows);
      }
      this.trouble.value = null;
    } catch (error) {
      this.trouble.value = troubleOf(error);
    }
    this.loaded.value = true;
  }

  /** Fetch all blocks from `seq` to the end that are not here yet. */
  async fetchFrom(seq: number): Promise<void> {
    for (let page = Math.floor((seq - 1) / PAGE); page * PAGE < this.head.value; page += 1) {
      await this.fetchPage(page);
    }
  }

  /** Add blocks, which may be new. */
  add(rows: readonly Row[]): void {
    for (const row of rows) {
      this.rows.set(row.seq, row);
      if (row.seq > this.head.value) this.head.value = row.seq;
    }
    this.version.value += 1;
  }

  /** Ask for new blocks again and again, until the cache is closed. */
  poll(): void {
    if (isFile) return;
    this.timer = window.setTimeout(() => {
      void this.fetchNew().then(() => {
        if (!this.closed) this.poll();
      });
    }, POLL_MILLISECONDS);
  }

  close(): void {
    this.closed = true;
    window.clearTimeout(this.timer);
  }

  /** Fetch the blocks behind the head. */
  async fetchNew(): Promise<void> {
    try {
      const answer = await this.window(this.head.value, PAGE);
      if (answer.rows.length > 0) this.add(answer.rows);
      if (this.trouble.value !== null) this.trouble.value = null;
    } catch (error) {
      this.trouble.value = troubleOf(error);
    }
  }

  private window(after: number, limit: number): Promise<WindowAnswer> {
    return get<WindowAnswer>(readPath(this.place, "/window", { after, limit, characters: this.characters }));
  }

  private async fetchPage(page: number): Promise<void> {
    const after = page * PAGE;
    const complete = Array.from({ length: Math.min(PAGE, this.head.value - after) }).every((_, n) =>
      this.rows.has(after + n + 1),
    );
    if (this.fetching.has(page) || complete) return;
    this.fetching.add(page);
    try {
      this.add((await this.window(after, PAGE)).rows);
    } catch (error) {
      this.trouble.value = troubleOf(error);
    } finally {
      this.fetching.delete(page);
    }
  }
}
