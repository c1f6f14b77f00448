// The conversations of the store, with a search, and the way to begin another one.

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { savedKey, saveKey } from "../api";
import { isFile } from "../embedded";
import { day, quantity } from "../format";
import { linkTo, route, samePlace } from "../route";
import { stored } from "../state";
import type { StoredConversation } from "../types";
import { movedIndex, VirtualList, type ListControl } from "../virtual";

export function Sidebar() {
  const query = useSignal("");
  const control = useRef<ListControl | null>(null);
  const answer = stored.value;
  if (answer === null) return <p class="hint">Loading…</p>;
  const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  const open = answer.items.filter((item) => item.open).length;
  const items = answer.items.filter((item) => {
    const text = `${item.title} ${item.conversation} ${item.user} ${item.project}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const several = new Set(answer.items.map((item) => `${item.tenant}/${item.project}/${item.user}`)).size > 1;
  return (
    <>
      <div class="sidebar-head">
        <a class="brand" href="#/">
          <img src="icon.svg" alt="" width="20" height="20" />
          Loopline
        </a>
        {answer.writable ? (
          <a class="button" href={newConversation()}>
            New
          </a>
        ) : (
          <span class="tag">read only</span>
        )}
      </div>
      <input
        type="search"
        class="search"
        placeholder="Search conversations"
        aria-label="Search conversations"
        value={query.value}
        onInput={(event) => {
          query.value = event.currentTarget.value;
        }}
      />
      {isFile ? null : (
        <a class="quiet open-work" href="#/work" aria-current={route.value.isWork ? "page" : undefined}>
          <span class={`dot ${open > 0 ? "" : "dot-off"}`} aria-hidden="true" />
          {open > 0 ? `${quantity(open, "conversation")} not done` : "Nothing runs or waits"}
        </a>
      )}
      {items.length === 0 ? (
        <p class="hint">{answer.items.length === 0 ? "There is no conversation yet." : "No conversation has these words."}</p>
      ) : (
        <VirtualList total={items.length} estimate={() => 62} label="Conversations" className="conversations" control={control}>
          {(index) => {
            const item = items[index];
            if (item === undefined) return null;
            return (
              <Item
                item={item}
                index={index}
                total={items.length}
                owner={several}
                move={(key) => {
                  const next = movedIndex(key, index, items.length);
                  if (next !== null) control.current?.focus(next);
                  return next !== null;
                }}
              />
            );
          }}
        </VirtualList>
      )}
      {savedKey() ? (
        <button
          type="button"
          class="quiet sign-out"
          onClick={() => {
            saveKey("");
            location.reload();
          }}
        >
          Sign out {answer.user}
        </button>
      ) : null}
    </>
  );
}

interface ItemProps {
  item: StoredConversation;
  index: number;
  total: number;
  owner: boolean;
  move: (key: string) => boolean;
}

function Item({ item, index, total, owner, move }: ItemProps) {
  const here = route.value;
  const chosen = samePlace(here.place, item);
  return (
    <article aria-posinset={index + 1} aria-setsize={total}>
      <a
        data-row
        class="conversation"
        href={linkTo(item, here.place ? here.view : "chat")}
        aria-current={chosen ? "page" : undefined}
        onKeyDown={(event) => {
          if (event.key !== " " && move(event.key)) event.preventDefault();
        }}
      >
        <span class="conversation-title">{item.title || item.conversation}</span>
        <span class="conversation-meta">
          {item.open ? <span class="dot dot-open" title="its last turn has not ended" /> : null}
          {owner ? `${item.user} · ` : ""}
          {day(item.last_activity_at)} · {quantity(item.turns, "turn")}
          {item.inherited ? ` · ${item.conversation}` : ""}
        </span>
      </a>
    </article>
  );
}

function newConversation(): string {
  const answer = stored.value;
  if (answer === null) return "#/";
  const { tenant, project, user } = answer;
  const names = new Set(answer.items.map((item) => item.conversation));
  const first = answer.bundles[0] ?? "talk";
  let n = answer.items.length + 1;
  while (names.has(`${first}-${n}`)) n += 1;
  return linkTo({ tenant, project, user, conversation: `${first}-${n}` }, "chat");
}
