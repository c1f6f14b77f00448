// Talks to a server with what `useChat` of the AI SDK is made of, and prints the messages that a page would show.
import {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  readUIMessageStream,
} from "ai";

const api = `${process.argv[2]}/api/chat`;

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => void this.messages.push(message);
  popMessage = () => void this.messages.pop();
  replaceMessage = (index, message) => void (this.messages[index] = message);
  snapshot = structuredClone;
}

class Chat extends AbstractChat {
  constructor(id, options = {}) {
    const { body, ...rest } = options;
    const transport = new DefaultChatTransport({ api, body });
    const state = new State();
    const errors = [];
    super({ id, state, transport, onError: (error) => void errors.push(String(error)), ...rest });
    this.errors = errors;
  }

  seen() {
    return structuredClone({ messages: this.messages, errors: this.errors, status: this.status });
  }
}

const said = new Chat("chat-spoken");
await said.sendMessage({ text: "call shop.draw name=tea" });
const spoken = said.seen();

const asking = new Chat("chat-asked");
await asking.sendMessage({ text: "call shop.book name=tea" });
const asked = asking.seen();
await asking.addToolOutput({ tool: "shop.book", toolCallId: "c1", output: "at noon" });
await asking.sendMessage();
const answered = asking.seen();

async function approval(id, approved, reason) {
  const chat = new Chat(id, {
    body: { bundle_id: "desk" },
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  await chat.sendMessage({ text: "call desk.wait name=0" });
  const before = chat.seen();
  await chat.addToolApprovalResponse({ id: "c1", approved, reason });
  while (chat.status !== "ready") await new Promise((done) => setTimeout(done, 10));
  return [before, chat.seen()];
}
const approved = await approval("approved", true);
const denied = await approval("denied", false, "Too dear.");

const refusing = new Chat("chat-refused");
await refusing.sendMessage({ text: "call shop.book name=tea" });
const failure = { state: "output-error", errorText: "No time." };
await refusing.addToolOutput({ tool: "shop.book", toolCallId: "c1", ...failure });
await refusing.sendMessage();

// Messages that are edited: the second one, then the first one, and then a page that is opened while the edit runs.
const editing = new Chat("chat-edited");
await editing.sendMessage({ text: "one" });
await editing.sendMessage({ text: "two" });
const edited = [];
for (const [at, text] of [[2, "too"], [0, "won"]]) {
  await editing.sendMessage({ text, messageId: editing.messages[at].id });
  await editing.sendMessage({ text: `after ${text}` });
  edited.push(editing.seen());
}
const older = editing.messages.at(-1).id;
const messageId = editing.messages[0].id;
const running = editing.sendMessage({ text: "call shop.wait name=1", messageId });
const isOld = ({ role, id }) => role !== "assistant" || id === older;
while (isOld(editing.messages.at(-1))) await new Promise((done) => setTimeout(done, 10));
const opened = new Chat("chat-edited");
await opened.resumeStream();
await running;
edited.push(editing.seen(), opened.seen());

const broken = new Chat("chat-broken");
await broken.sendMessage({ text: "break" });

// A page that is opened while a turn runs.
const slow = new Chat("slow");
const sending = slow.sendMessage({ text: "call shop.wait name=1" });
while (slow.messages.at(-1)?.role !== "assistant") await new Promise((done) => setTimeout(done, 10));
const page = new Chat("slow");
await page.resumeStream();
await sending;
const idle = new Chat("chat-spoken");
await idle.resumeStream();

// The same stream without a chat around it.
const transport = new DefaultChatTransport({ api });
const messages = [{ id: "m1", role: "user", parts: [{ type: "text", text: "plain" }] }];
const stream = await transport.sendMessages({ chatId: "read", messages, trigger: "submit-message" });
let read;
for await (const message of readUIMessageStream({ stream, terminateOnError: true })) read = message;

// A tool that the page runs: one that comes with the request, and one of the bundle that needs approval first.
const parameters = { type: "object", properties: { unit: { type: "string" } } };
async function client(id, text, body, run) {
  const calls = [];
  const chat = new Chat(id, {
    body,
    sendAutomaticallyWhen: (seen) =>
      lastAssistantMessageIsCompleteWithToolCalls(seen) ||
      lastAssistantMessageIsCompleteWithApprovalResponses(seen),
    onToolCall: ({ toolCall }) => {
      calls.push(toolCall);
      if (toolCall.dynamic) return;
      const { toolName: tool, toolCallId } = toolCall;
      chat.addToolOutput({ tool, toolCallId, ...run(toolCall.input) });
    },
  });
  const settled = async () => {
    let last = "";
    while (chat.status !== "ready" || last !== JSON.stringify(chat.messages)) {
      last = JSON.stringify(chat.messages);
      await new Promise((done) => setTimeout(done, 100));
    }
    return { ...chat.seen(), calls: structuredClone(calls) };
  };
  await chat.sendMessage({ text });
  return { chat, settled };
}
const brought = { tools: { where: { description: "Where is the user?", parameters } } };
const located = await (
  await client("where", "call where unit=m", brought, ({ unit }) => ({ output: { city: "Rome", unit } }))
).settled();
const lost = await (
  await client("lost", "call where unit=m", brought, () => ({
    state: "output-error",
    errorText: "No signal.",
  }))
).settled();
const own = { bundle_id: "desk" };
const showing = await client("show", "call desk.show text=hello", own, () => ({ output: "shown" }));
const unapproved = await showing.settled();
await showing.chat.addToolApprovalResponse({ id: "c1", approved: true });
const shown = await showing.settled();
const reloaded = new Chat("where");
await reloaded.resumeStream();

console.log(
  JSON.stringify({
    spoken,
    asked,
    answered,
    approved,
    denied,
    refused: refusing.seen(),
    edited,
    broken: broken.seen(),
    slow: slow.seen(),
    resumed: page.seen(),
    idle: idle.seen(),
    read,
    located,
    lost,
    unapproved,
    shown,
  }),
);
