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

const pairs = { lost, lostAgain, replayed, replayedAgain, answeredAgain, failed, failedAgain };
console.log(JSON.stringify({ spoken, second, again, asked, answered, broken, seen, ...pairs }));
