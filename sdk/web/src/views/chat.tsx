// A conversation as a chat, live: messages, thinking, plans, calls, answers with their sources, and the next message.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get, pathOf, post, readPath } from "../api";
import { BlockCache } from "../blocks";
import { draft } from "../drafts";
import { count } from "../format";
import { LiveFeed } from "../live";
import { linkTo, samePlace } from "../route";
import { isApprover, isWritable, refreshStored, stored } from "../state";
import { chatOf, type Chat, type ChatActions } from "../turns";
import type { Approval, Json, Place, Row } from "../types";
import { VirtualList } from "../virtual";
import { ChatItemView } from "./chatitem";
import { Composer } from "./composer";
import { Streamed } from "./streamed";
import { TroubleNote } from "./trouble";

const CHARACTERS = 40_000;
/** So many of the last blocks are read at first. */
const LAST = 1_000;

export function ChatView({ place }: { place: Place }) {
  const cache = useMemo(() => new BlockCache(place, CHARACTERS), [place]);
  const writable = isWritable(place);
  const feed = useMemo(() => (writable ? new LiveFeed(cache) : null), [cache, writable]);
  const first = useSignal(1);
  const problem = useSignal("");
  const opensCalls = useSignal(false);

  useEffect(() => {
    let left = false;
    void cache.open(true).then(async () => {
      if (left) return;
      first.value = Math.max(1, cache.head.value - LAST + 1);
      await cache.fetchFrom(first.value);
      if (feed) void feed.run();
      else cache.poll();
    });
    return () => {
      left = true;
      cache.close();
      feed?.close();
    };
  }, [cache, feed]);

  const version = cache.version.value;
  const chat = useMemo(() => chatOf(rowsOf(cache, first.value)), [cache, version, first.value]);
  const trouble = cache.trouble.value;
  const isNew = cache.head.value === 0 && trouble?.kind === "gone" && writable;
  if (!cache.loaded.value) return <p class="hint">Loading…</p>;
  if (trouble !== null && !isNew && cache.head.value === 0) return <TroubleNote trouble={trouble} />;

  const run = (work: () => Promise<unknown>) => {
    problem.value = "";
    work().catch((error: unknown) => {
      problem.value = error instanceof Error ? error.message : String(error);
    });
  };
  const actions: ChatActions = {
    writable,
    approves: isApprover(place),
    opensCalls: opensCalls.value,
    place,
    sources: chat.sources,
    progress: feed?.progress.value ?? {},
    answer: (callId, value, approval) => {
      run(async () => {
        await answerCall(place, callId, value, approval);
        if (!writable) await cache.fetchNew();
      });
    },
    rate: (turn, reaction) => {
      run(async () => {
        await post(pathOf(place, `/turns/${turn}/feedback`), { reaction });
        await cache.fetchNew();
      });
    },
    fork: (seq, text) => {
      run(() => forkBefore(place, seq, text));
    },
  };
  const inherited = stored.value?.items.find((item) => samePlace(item, place))?.inherited ?? 0;
  const isLeft = chat.openTurn !== "" && !chat.waits && cache.head.value <= inherited;
  const streamed = feed?.streamed.value ?? {};
  const hasStream = Object.values(streamed).some((text) => text !== "");
  return (
    <div class="chat">
      {first.value > 1 ? (
        <button
          type="button"
          class="earlier"
          onClick={() => {
            first.value = Math.max(1, first.value - LAST);
            void cache.fetchFrom(first.value);
          }}
        >
          Show earlier blocks ({count(first.value - 1)})
        </button>
      ) : null}
      {chat.items.some((item) => item.kind === "call") ? (
        <div class="chat-tools">
          <label class="check">
            <input type="checkbox" checked={opensCalls.value} onChange={() => (opensCalls.value = !opensCalls.value)} />
            Show arguments and results
          </label>
        </div>
      ) : null}
      {chat.items.length === 0 && !hasStream ? (
        <div class="empty">
          <p>{writable ? "Write the first message." : "This conversation has no message."}</p>
        </div>
      ) : (
        <VirtualList
          total={chat.items.length + (hasStream || (chat.openTurn !== "" && !isLeft) ? 1 : 0)}
          estimate={() => 90}
          label="Messages"
          className="messages"
          follow
        >
          {(index) => {
            const item = chat.items[index];
            if (item === undefined) return <Streamed texts={streamed} note={feed?.progress.value[""] ?? ""} waits={chat.waits} />;
            return (
              <article data-row tabIndex={-1} class={`item item-${item.kind}`} aria-posinset={index + 1} aria-setsize={chat.items.length}>
                <ChatItemView item={item} actions={actions} />
              </article>
            );
          }}
        </VirtualList>
      )}
      <div class="chat-foot">
        {problem.value || feed?.problem.value ? (
          <p class="trouble" role="alert">
            {problem.value || feed?.problem.value}
          </p>
        ) : null}
        {feed && !feed.connected.value ? <p class="hint">The connection was lost. The page connects again.</p> : null}
        {isLeft && writable ? (
          <p class="left-open">
            The fork ends inside a turn, which does not run here.
            <button type="button" onClick={() => { run(() => post(pathOf(place, "/answers"), {})); }}>
              Continue the turn
            </button>
          </p>
        ) : null}
        {writable ? (
          <Composer place={place} running={isRunning(chat) && !isLeft} onError={(text) => (problem.value = text)} onSent={() => void refreshStored()} />
        ) : null}
      </div>
    </div>
  );
}

function isRunning(chat: Chat): boolean {
  return chat.openTurn !== "" && !chat.waits;
}

function* rowsOf(cache: BlockCache, first: number): Generator<Row> {
  for (let seq = first; seq <= cache.head.value; seq += 1) {
    const row = cache.peek(seq);
    if (row) yield row;
  }
}

/** Answer a call that waits; an approval with its signature, which the server gives. */
export async function answerCall(place: Place, callId: string, value: Json, approval: boolean): Promise<void> {
  const approvals: Record<string, string> = {};
  if (approval) {
    const waiting = await get<{ approvals: Approval[] }>(readPath(place, "/approvals"));
    const signed = waiting.approvals.find((call) => call.call_id === callId)?.approval;
    if (signed) approvals[callId] = signed;
  }
  await post(readPath(place, "/answers"), { values: { [callId]: value }, approvals });
}

/** Begin another conversation with the blocks before a message, and put the message into its composer. */
async function forkBefore(place: Place, seq: number, text: string): Promise<void> {
  if (seq <= 1) {
    const name = `${place.conversation}-${Date.now().toString(36)}`;
    draft({ ...place, conversation: name }, text);
    location.hash = linkTo({ ...place, conversation: name }, "chat");
    return;
  }
  const fork = await post<{ conversation_id: string }>(pathOf(place, "/fork"), { seq: seq - 1 });
  const other = { ...place, conversation: fork.conversation_id };
  draft(other, text);
  await refreshStored();
  location.hash = linkTo(other, "chat");
}
