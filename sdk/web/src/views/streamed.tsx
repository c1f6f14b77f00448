// What is being written right now.

import { Markdown } from "../markdown";

export function Streamed({ texts, note, waits }: { texts: Record<string, string>; note: string; waits: boolean }) {
  const thinking = texts["thinking"] ?? "";
  const notes = texts["notes"] ?? "";
  const answer = texts["answer"] ?? texts["draft"] ?? "";
  return (
    <article class="item item-streamed" aria-busy="true">
      {thinking ? (
        <details open class="thinking">
          <summary>Thinking</summary>
          <p class="thinking-text">{thinking}</p>
        </details>
      ) : null}
      {notes ? <p class="notes">{notes}</p> : null}
      {answer ? <Markdown text={answer} /> : null}
      {answer === "" && !waits ? <p class="working">{note || "Working"}</p> : null}
    </article>
  );
}
