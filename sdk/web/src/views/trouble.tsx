// What the page says when something cannot be shown.

import type { Trouble } from "../blocks";

const HEADINGS: Record<Trouble["kind"], string> = {
  gone: "This conversation does not exist, or was deleted.",
  refused: "The server refused this.",
  lost: "The server cannot be reached. The page tries again.",
};

export function TroubleNote({ trouble }: { trouble: Trouble }) {
  return (
    <div class="trouble" role="alert">
      <strong>{HEADINGS[trouble.kind]}</strong>
      {trouble.kind === "lost" ? null : <p>{trouble.text}</p>}
    </div>
  );
}
