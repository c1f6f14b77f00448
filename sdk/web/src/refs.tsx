// Refs in texts, which open what they name, and a button that copies a ref.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

const REF = /\b(?:ar|tc|fi|so|su|ks|cv|sk|ef|ac):[A-Za-z0-9_][^\s"'`<>()[\]{},;]*(?:\[[0-9,\- ]{1,40}\])?/g;
const LONGEST = 40_000;

/** The ref that is open beside the view, if any. */
export const openRef = signal<string | null>(null);

/** Return a text whose refs are links. */
export function RefText({ text }: { text: string }): ComponentChildren {
  if (text.length > LONGEST || !text.includes(":")) return text;
  const parts: ComponentChildren[] = [];
  let end = 0;
  for (const match of text.matchAll(REF)) {
    const ref = match[0].replace(/[.:]+$/, "");
    parts.push(text.slice(end, match.index), <RefLink key={match.index} name={ref} />);
    end = match.index + ref.length;
  }
  if (end === 0) return text;
  parts.push(text.slice(end));
  return <>{parts}</>;
}

/** Return a ref as a button that opens what it names. */
export function RefLink({ name }: { name: string }) {
  return (
    <button
      type="button"
      class="ref"
      onClick={(event) => {
        event.stopPropagation();
        openRef.value = name;
      }}
    >
      {name}
    </button>
  );
}

/** Return a button that copies a text. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      class="quiet"
      onClick={() => {
        void navigator.clipboard.writeText(text).then(() => {
          setDone(true);
          window.setTimeout(() => {
            setDone(false);
          }, 1_500);
        });
      }}
    >
      {done ? "Copied" : label}
    </button>
  );
}
