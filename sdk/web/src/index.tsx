// The page: conversations on the left, and one of them in four views.

import { render } from "preact";
import { useEffect } from "preact/hooks";
import { fileConversation, isFile } from "./embedded";
import { finishLogin } from "./login";
import { openRef } from "./refs";
import { linkTo, route, samePlace, VIEWS, type ViewName } from "./route";
import { needsKey, stored, trouble, watchStored } from "./state";
import type { Place } from "./types";
import { BesideView } from "./views/beside";
import { ChatView } from "./views/chat";
import { ExportMenu } from "./views/export";
import { OverviewView } from "./views/overview";
import { PromptView } from "./views/prompt";
import { ReadingPanel } from "./views/reading";
import { Sidebar } from "./views/sidebar";
import { SignIn } from "./views/signin";
import { chosenSeq, TimelineView } from "./views/timeline";
import { TroubleNote } from "./views/trouble";
import { WorkView } from "./views/work";

const NAMES: Record<ViewName, string> = { chat: "Chat", overview: "Overview", timeline: "Timeline", prompt: "Prompt" };
let lastPlace: Place | null = null;

/** Return the place in the address, the same object as before if it is the same conversation. */
function currentPlace(): Place | null {
  const place = fileConversation() ?? route.value.place;
  if (!samePlace(place, lastPlace)) {
    lastPlace = place;
    openRef.value = null;
  }
  return lastPlace;
}

function Page() {
  const place = currentPlace();
  useEffect(() => {
    document.title = place ? `${titleOf(place)} · Loopline` : "Loopline";
  }, [place, stored.value]);
  if (needsKey.value) return <SignIn />;
  if (isFile) {
    return (
      <div class="app app-file has-place">
        <main id="main" tabIndex={-1}>
          {place ? <ConversationPage place={place} /> : null}
        </main>
      </div>
    );
  }
  return (
    <div class={`app ${place || route.value.isWork ? "has-place" : ""}`}>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to the conversation
      </a>
      <nav class="sidebar" aria-label="Conversations">
        {trouble.value ? <TroubleNote trouble={trouble.value} /> : null}
        <Sidebar />
      </nav>
      <main id="main" tabIndex={-1}>
        {place ? <ConversationPage place={place} /> : route.value.isWork ? <WorkView /> : <Welcome />}
      </main>
    </div>
  );
}

function titleOf(place: Place): string {
  const title = stored.value?.items.find((item) => samePlace(item, place))?.title ?? "";
  return title === "" ? place.conversation : title;
}

function ConversationPage({ place }: { place: Place }) {
  const { view, rest } = route.value;
  const parent = /^(.+)~c[0-9.]+$/.exec(place.conversation)?.[1];
  return (
    <>
      <header class="top">
        {isFile ? null : (
          <a class="back" href="#/" aria-label="All conversations">
            ←
          </a>
        )}
        <div class="top-title">
          <h1>{titleOf(place)}</h1>
          {parent ? <a href={linkTo({ ...place, conversation: parent }, "overview")}>child run of {parent}</a> : null}
        </div>
        <nav class="tabs" aria-label="Views">
          {VIEWS.map((name) => (
            <a key={name} href={linkTo(place, name)} aria-current={view === name ? "page" : undefined}>
              {NAMES[name]}
            </a>
          ))}
        </nav>
        {isFile ? null : <ExportMenu place={place} />}
      </header>
      <div class="view">
        {view === "chat" ? <ChatView key={keyOf(place)} place={place} /> : null}
        {view === "overview" ? <OverviewView key={keyOf(place)} place={place} /> : null}
        {view === "timeline" ? <TimelineView key={keyOf(place)} place={place} chosen={chosenSeq()} /> : null}
        {view === "prompt" ? <Prompts key={keyOf(place)} place={place} rest={rest} /> : null}
        <ReadingPanel place={place} />
      </div>
    </>
  );
}

function Prompts({ place, rest }: { place: Place; rest: string[] }) {
  const turn = Number(rest[0] ?? 0) || 0;
  const round = Number(rest[1] ?? 0) || 0;
  const other = rest[2] === "beside" ? rest[3] : undefined;
  if (other !== undefined) return <BesideView place={place} at={{ turn, round, seq: 0 }} other={{ ...place, conversation: other }} />;
  return <PromptView place={place} turn={turn} round={round} seq={Number(rest[2] ?? 0) || 0} />;
}

function keyOf(place: Place): string {
  return JSON.stringify(place);
}

function Welcome() {
  const answer = stored.value;
  return (
    <div class="empty">
      <h1>Loopline</h1>
      <p>
        {answer === null
          ? "Loading…"
          : answer.items.length > 0
            ? "Choose a conversation. Each shows its chat, its rounds on a time axis, every block, and for each round exactly what the model was sent."
            : answer.writable
              ? "There is no conversation yet. Begin one with New."
              : "This store has no conversation."}
      </p>
    </div>
  );
}

const root = document.getElementById("page");
if (root) {
  root.textContent = "";
  render(<Page />, root);
  void finishLogin().then(watchStored);
}
