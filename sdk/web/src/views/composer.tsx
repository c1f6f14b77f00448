// The next message, with files by choice, drop and paste; while a turn runs it adds to the turn, or redirects it.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { pathOf, post, postForm } from "../api";
import { draft, draftOf } from "../drafts";
import { bytes } from "../format";
import type { Place } from "../types";

interface Props {
  place: Place;
  running: boolean;
  onError: (text: string) => void;
  onSent: () => void;
}

export function Composer({ place, running, onError, onSent }: Props) {
  const files = useSignal<File[]>([]);
  const waiting = useSignal(0);
  const last = useRef(Promise.resolve());
  const box = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const text = draftOf(place);

  useEffect(() => {
    const area = box.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 240)}px`;
  }, [text]);

  /** Send after what was sent before. The box is free at once; a message that fails returns to it. */
  function send(kind: "message" | "followup" | "steer") {
    const sent = { text, files: files.value };
    if (sent.text.trim() === "" && sent.files.length === 0) return;
    draft(place, "");
    files.value = [];
    waiting.value += 1;
    last.current = last.current.then(async () => {
      try {
        if (kind !== "message" && sent.files.length === 0) {
          await post(pathOf(place, "/interrupts"), { text: sent.text, kind });
        } else {
          await postMessage(place, sent.text, sent.files);
        }
        onSent();
      } catch (error) {
        draft(place, [sent.text, draftOf(place)].filter((part) => part !== "").join("\n"));
        files.value = [...sent.files, ...files.value];
        onError(error instanceof Error ? error.message : String(error));
      }
      waiting.value -= 1;
    });
    box.current?.focus();
  }

  function add(list: FileList | null) {
    if (list && list.length > 0) files.value = [...files.value, ...list];
  }

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send(running ? "followup" : "message");
      }}
      onDragOver={(event) => {
        event.preventDefault();
      }}
      onDrop={(event) => {
        event.preventDefault();
        add(event.dataTransfer?.files ?? null);
      }}
    >
      {files.value.length > 0 ? (
        <ul class="chips">
          {files.value.map((file, n) => (
            <li key={n} class="chip">
              {file.name} <span class="faint">{bytes(file.size)}</span>
              <button
                type="button"
                class="quiet"
                aria-label={`Remove ${file.name}`}
                onClick={() => {
                  files.value = files.value.filter((_, m) => m !== n);
                }}
              >
                ✕
              </button>
            </li>
          ))}
        </ul>
      ) : null}
      <textarea
        ref={box}
        rows={1}
        aria-label="Message"
        placeholder={running ? "Add to the running turn" : "Message"}
        value={text}
        onInput={(event) => {
          draft(place, event.currentTarget.value);
        }}
        onPaste={(event) => {
          add(event.clipboardData?.files ?? null);
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send(running ? "followup" : "message");
          }
        }}
      />
      <div class="composer-tools">
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          onChange={(event) => {
            add(event.currentTarget.files);
            event.currentTarget.value = "";
          }}
        />
        <button type="button" class="quiet" onClick={() => picker.current?.click()}>
          Attach
        </button>
        <span class="grow" />
        {running ? (
          <>
            <button type="button" class="quiet" onClick={() => void post(pathOf(place, "/stop"), {}).catch((error: unknown) => { onError(String(error)); })}>
              Stop
            </button>
            <button type="button" onClick={() => { send("steer"); }} title="Redirect the turn: what the model writes now is dropped">
              Steer
            </button>
          </>
        ) : null}
        <button type="submit" class="primary" aria-busy={waiting.value > 0}>
          {running ? "Add" : "Send"}
        </button>
      </div>
    </form>
  );
}

async function postMessage(place: Place, text: string, files: File[]): Promise<void> {
  const message = { text: text.trim() === "" ? files.map((file) => file.name).join(", ") : text, background: true };
  if (files.length === 0) {
    await post(pathOf(place, "/messages"), message);
    return;
  }
  const form = new FormData();
  form.append("message", JSON.stringify(message));
  for (const file of files) form.append("files", file);
  await postForm(pathOf(place, "/messages/multipart"), form);
}
