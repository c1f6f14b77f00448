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
console.log(JSON.stringify({ spoken, second, again, asked, answered, broken }));
