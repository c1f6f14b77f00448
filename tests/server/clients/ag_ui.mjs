// Talks to a server with the official client of AG-UI, whose verifier checks every event, and prints what it has.
import { HttpAgent } from "@ag-ui/client";

const url = process.argv[2];

async function run(agent, parameters) {
  const events = [];
  let error = null;
  const outcome = await agent
    .runAgent(parameters, { onEvent: ({ event }) => void events.push(event) })
    .catch((failure) => ((error = String(failure)), null));
  const { messages, state } = structuredClone({ messages: agent.messages, state: agent.state });
  return { events, error, messages, state, result: outcome?.result };
}

function agentOf(threadId, ...texts) {
  const initialMessages = texts.map((content, n) => ({ id: `m${n}`, role: "user", content }));
  return new HttpAgent({ url: `${url}/ag-ui`, threadId, initialMessages });
}

const said = agentOf("spoken", "call shop.draw name=tea");
const spoken = await run(said);
said.addMessage({ id: "m9", role: "user", content: "more" });
const second = await run(said);
const again = await run(agentOf("spoken"));

const asking = agentOf("asked", "call shop.book name=tea");
const asked = await run(asking);
const interruptId = asked.events.at(-1).outcome?.interrupts[0].id;
const resume = [{ interruptId, status: "resolved", payload: "at noon" }];
const answered = await run(asking, { resume });

const broken = await run(agentOf("broken", "break"));

// A client whose connection is lost while a call runs, and that sends something new, or reads the run again.
async function lose(threadId) {
  const agent = agentOf(threadId, "think, then call shop.wait name=0.3");
  const onEvent = ({ event }) => void (event.type === "TOOL_CALL_END" && agent.abortRun());
  await agent.runAgent({}, { onEvent });
  return agent;
}
const interrupted = await lose("lost");
interrupted.addMessage({ id: "m9", role: "user", content: "more" });
const lost = await run(interrupted);
const lostAgain = await run(agentOf("lost"));
const replayed = await run(await lose("replayed"));
const replayedAgain = await run(agentOf("replayed"));
const answeredAgain = await run(agentOf("asked"));

const failed = await run(agentOf("failed", "call shop.nothing name=tea"));
const failedAgain = await run(agentOf("failed"));

const looking = agentOf("image");
const source = { type: "data", mimeType: "image/png", value: process.argv[3] };
const content = [{ type: "text", text: "look" }, { type: "image", source }];
looking.addMessage({ id: "m0", role: "user", content });
const seen = await run(looking);

// A tool that the client runs, which comes with the run, and the next run with its result.
const tools = [
  {
    name: "where",
    description: "Where is the user?",
    parameters: { type: "object", properties: { unit: { type: "string" } } },
  },
];
const locating = agentOf("where", "call where unit=m");
const called = await run(locating, { tools });
const [call] = locating.messages.at(-1).toolCalls;
locating.addMessage({ id: "m5", role: "tool", toolCallId: call.id, content: "in Rome" });
const located = await run(locating, { tools });
const locatedAgain = await run(agentOf("where"));

// An approval with edited arguments and a rule.
const forwardedProps = { bundle_id: "desk" };
const paying = agentOf("edited", "call desk.wait name=9");
const priced = await run(paying, { forwardedProps });
const [price] = priced.events.at(-1).outcome.interrupts;
const payload = { approved: true, editedArgs: { name: "0" }, rule: { arguments: "any" } };
const paid = await run(paying, {
  forwardedProps,
  resume: [{ interruptId: price.id, status: "resolved", payload }],
});
paying.addMessage({ id: "m6", role: "user", content: "call desk.wait name=0.1" });
const ruled = await run(paying, { forwardedProps });

const ofTools = { called, located, locatedAgain, priced, paid, ruled };
const pairs = { lost, lostAgain, replayed, replayedAgain, answeredAgain, failed, failedAgain };
console.log(JSON.stringify({ spoken, second, again, asked, answered, broken, seen, ...ofTools, ...pairs }));
