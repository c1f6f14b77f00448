// Looks for words in the blocks of a conversation, window by window, beside the page so that it stays responsive.

import { matches } from "./matching";
import type { WindowAnswer } from "./types";

export interface SearchRequest {
  /** The address of the windows, with its query, without `after` and `limit`. */
  address: string;
  key: string;
  head: number;
  words: string;
}

export interface SearchReport {
  found: number[];
  searched: number;
  done: boolean;
  problem: string;
}

const PAGE = 500;
const MOST = 1_000;

let current = 0;

onmessage = (message: MessageEvent<SearchRequest>) => {
  current += 1;
  void search(message.data, current);
};

async function search(request: SearchRequest, number: number): Promise<void> {
  const words = request.words.toLowerCase().split(/\s+/).filter(Boolean);
  const found: number[] = [];
  const headers: Record<string, string> = request.key ? { Authorization: `Bearer ${request.key}` } : {};
  for (let after = 0; after < request.head && found.length < MOST; after += PAGE) {
    const response = await fetch(`${request.address}&after=${after}&limit=${PAGE}`, { headers, credentials: "omit" });
    if (number !== current) return;
    if (!response.ok) {
      report({ found, searched: after, done: true, problem: `the server answered ${response.status}` });
      return;
    }
    const answer = (await response.json()) as WindowAnswer;
    for (const row of answer.rows) if (matches(row, words)) found.push(row.seq);
    const searched = Math.min(after + PAGE, request.head);
    report({ found, searched, done: searched >= request.head, problem: "" });
  }
}

function report(answer: SearchReport): void {
  postMessage(answer);
}
