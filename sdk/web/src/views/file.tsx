// A file of a conversation: images are shown, as images only, and every file can be saved or read as text.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { getBytes, readPath } from "../api";
import { number, object, text } from "../bodies";
import { isFile } from "../embedded";
import { bytes } from "../format";
import { openRef } from "../refs";
import type { Place, Row } from "../types";

/** The types that a browser shows as an image, in which no script runs. */
const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"]);
const LARGEST_PREVIEW = 10_000_000;

export function FileItemView({ place, row, name }: { place: Place; row: Row; name: string }) {
  const body = object(row.body);
  const mime = text(body["mime"]);
  const size = number(body["size"]);
  const problem = useSignal("");
  return (
    <div class="file">
      {IMAGES.has(mime) && size < LARGEST_PREVIEW && !isFile ? <Preview place={place} seq={row.seq} mime={mime} name={name} /> : null}
      <span class="file-name">{name}</span>
      <span class="file-kind">
        {mime} {size ? bytes(size) : ""}
      </span>
      <button type="button" class="quiet" onClick={() => (openRef.value = row.ref)}>
        Read
      </button>
      {isFile ? null : (
        <button
          type="button"
          class="quiet"
          onClick={() => {
            save(place, row.seq, name).catch((error: unknown) => {
              problem.value = error instanceof Error ? error.message : String(error);
            });
          }}
        >
          Save
        </button>
      )}
      {problem.value ? <p class="trouble">{problem.value}</p> : null}
    </div>
  );
}

function Preview({ place, seq, mime, name }: { place: Place; seq: number; mime: string; name: string }) {
  const url = useSignal("");
  useEffect(() => {
    let made = "";
    let left = false;
    getBytes(readPath(place, "/file", { seq }))
      .then((data) => {
        if (left) return;
        made = URL.createObjectURL(new Blob([data], { type: mime }));
        url.value = made;
      })
      .catch(() => {
        // Without its bytes the file is still named, and Save says why it cannot be had.
      });
    return () => {
      left = true;
      if (made) URL.revokeObjectURL(made);
    };
  }, [place, seq]);
  return url.value ? <img class="preview" src={url.value} alt={name} /> : null;
}

async function save(place: Place, seq: number, name: string): Promise<void> {
  const data = await getBytes(readPath(place, "/file", { seq }));
  const url = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.split(/[\\/]/).at(-1) ?? "file";
  link.click();
  URL.revokeObjectURL(url);
}
