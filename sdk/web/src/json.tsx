// JSON as people read it: names, values, and folds for what is deep.

import type { ComponentChildren } from "preact";
import { RefText } from "./refs";
import type { Json } from "./types";

const DEEPEST = 40;
const MOST_ITEMS = 200;

/** Return a JSON value as an outline. */
export function JsonView({ value, depth = 0 }: { value: Json; depth?: number }): ComponentChildren {
  if (typeof value === "string") return <JsonText value={value} />;
  if (typeof value !== "object" || value === null) return <span class="json-atom">{String(value)}</span>;
  const entries: [string, Json][] = Array.isArray(value)
    ? value.map((item, n) => [String(n), item])
    : Object.entries(value);
  if (entries.length === 0) return <span class="json-atom">{Array.isArray(value) ? "[]" : "{}"}</span>;
  if (depth >= DEEPEST) return <span class="json-atom">{JSON.stringify(value).slice(0, 1_000)}</span>;
  return (
    <dl class="json">
      {entries.slice(0, MOST_ITEMS).map(([name, item]) => (
        <div key={name} class={isFlat(item) ? "json-flat" : undefined}>
          <dt>{name}</dt>
          <dd>
            <JsonView value={item} depth={depth + 1} />
          </dd>
        </div>
      ))}
      {entries.length > MOST_ITEMS ? (
        <div>
          <dt>…</dt>
          <dd>{entries.length - MOST_ITEMS} more</dd>
        </div>
      ) : null}
    </dl>
  );
}

function isFlat(value: Json): boolean {
  return typeof value !== "object" || value === null || Object.keys(value).length === 0;
}

function JsonText({ value }: { value: string }) {
  if (value === "") return <span class="json-atom">""</span>;
  const isLong = value.length > 120 || value.includes("\n");
  return isLong ? (
    <pre class="json-long">
      <RefText text={value} />
    </pre>
  ) : (
    <span class="json-text">
      <RefText text={value} />
    </span>
  );
}
