// Saves a conversation as one HTML file or as a JSON document.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { getBytes, readPath } from "../api";
import type { Place } from "../types";

const KINDS: [string, string][] = [
  ["secret", "keys and passwords"],
  ["email", "mail addresses"],
  ["phone", "phone numbers"],
  ["card", "card numbers"],
  ["iban", "bank accounts"],
  ["ip", "IP addresses"],
];

export function ExportMenu({ place }: { place: Place }) {
  const kinds = useSignal<ReadonlySet<string>>(new Set());
  const problem = useSignal("");
  const saves = useSignal(false);
  const menu = useRef<HTMLDetailsElement>(null);

  useEffect(() => {
    const close = (event: Event) => {
      const element = menu.current;
      if (element && !(event.target instanceof Node && element.contains(event.target))) element.open = false;
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("focusin", close);
    return () => {
      document.removeEventListener("pointerdown", close);
      document.removeEventListener("focusin", close);
    };
  }, []);

  async function save(path: string, name: string, type: string) {
    problem.value = "";
    saves.value = true;
    try {
      offer(new Blob([await getBytes(path)], { type }), name);
      if (menu.current) menu.current.open = false;
    } catch (error) {
      problem.value = error instanceof Error ? error.message : String(error);
    }
    saves.value = false;
  }

  function savePage() {
    const query = [...kinds.value].map((kind) => `&redact=${kind}`).join("");
    return save(`${readPath(place, "/page")}${query}`, `${fileName(place)}.html`, "text/html");
  }

  return (
    <details
      class="menu"
      ref={menu}
      onKeyDown={(event) => {
        if (event.key === "Escape" && menu.current) menu.current.open = false;
      }}
    >
      <summary class="quiet">Export</summary>
      <form
        class="menu-body"
        aria-label="Export"
        onSubmit={(event) => {
          event.preventDefault();
          void savePage();
        }}
      >
        <p>One HTML file with all four views. It needs no server, and may be sent to somebody.</p>
        <fieldset>
          <legend>Leave out</legend>
          {KINDS.map(([kind, label]) => (
            <label key={kind} class="check">
              <input
                type="checkbox"
                checked={kinds.value.has(kind)}
                onChange={(event) => {
                  const next = new Set(kinds.value);
                  if (event.currentTarget.checked) next.add(kind);
                  else next.delete(kind);
                  kinds.value = next;
                }}
              />
              {label}
            </label>
          ))}
        </fieldset>
        <div class="menu-foot">
          <button type="button" class="quiet" onClick={() => void save(readPath(place, "/export"), `${fileName(place)}.json`, "application/json")}>
            JSON to import
          </button>
          <span class="grow" />
          <button type="submit" class="primary" disabled={saves.value}>
            {saves.value ? "Saving" : "Save HTML"}
          </button>
        </div>
        {problem.value ? (
          <p class="trouble" role="alert">
            {problem.value}
          </p>
        ) : null}
      </form>
    </details>
  );
}

function fileName(place: Place): string {
  return place.conversation.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 80) || "conversation";
}

/** Let the browser save a file. */
function offer(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  window.setTimeout(() => {
    URL.revokeObjectURL(link.href);
  }, 60_000);
}
