"""A conversation as one HTML file: the page with its script and style, and the answers that it would fetch, in parts.

The policy of the file lets only its own script run. Parts of the conversation are JSON, which the page parses when it needs
them.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape

from pydantic import BaseModel

from loopline.harness import redactor_of
from loopline.models import Json, dumps
from loopline.redaction.redaction import Redactor, redact_json, redact_text
from loopline.server.block_rows import read_rows
from loopline.server.outlines import outline
from loopline.server.page_files import FOLDER
from loopline.server.problems import not_found
from loopline.server.shown_prompts import show_prompts
from loopline.timeline import ConversationKey, ConversationSummary, Timeline, TimelineLog, iso_time

ROWS = 500
"""The blocks of one part."""
CHARACTERS = 200_000
"""The most characters of a text in the file."""
PROMPTS = 20
"""The requests of one part. Their messages are in parts of their own, each message once."""
MESSAGES = 200


class StoredConversation(BaseModel):
    """A conversation of the store. `open` says that its last turn may not have ended."""

    tenant: str
    project: str
    user: str
    conversation: str
    title: str
    started_at: str
    last_activity_at: str
    turns: int
    head: int
    inherited: int
    open: bool


def stored_conversation(summary: ConversationSummary, *, is_open: bool) -> StoredConversation:
    """Return the row of a conversation; `is_open` says that its last turn may not have ended."""
    key = summary.conversation
    return StoredConversation(
        tenant=key.tenant,
        project=key.project,
        user=key.user,
        conversation=key.name,
        title=summary.title,
        started_at=iso_time(summary.started_at),
        last_activity_at=iso_time(summary.last_activity_at),
        turns=summary.turns,
        head=summary.head,
        inherited=summary.inherited,
        open=is_open,
    )


async def export_page(
    log: TimelineLog, key: ConversationKey, redacted_kinds: Sequence[str] = ()
) -> str:
    """Return the HTML of a conversation. Secrets and personal data of the kinds, such as `email`, are replaced in its texts.

    Raises:
        RequestProblem: the conversation does not exist, 404.
        StoreError: a block cannot be read.
        PropertyError: a kind is unknown.
        LooplineError: the extra `redaction` is not installed, and there are kinds.
    """
    redactor = await asyncio.to_thread(redactor_of, redacted_kinds) if redacted_kinds else None
    summary = await log.find(key)
    if summary is None:
        raise not_found(f"conversation {key.name!r}")
    rows: list[Json] = []
    for after in range(0, summary.head, ROWS):
        page = await read_rows(log, key, after, ROWS, CHARACTERS)
        rows += [row.model_dump(mode="json") for row in page]
    timeline = Timeline(await log.read(key))
    item = stored_conversation(summary, is_open=False)
    return await asyncio.to_thread(_html, item, rows, timeline, redactor)


def _html(
    item: StoredConversation, rows: list[Json], timeline: Timeline, redactor: Redactor | None
) -> str:
    """Return the HTML file with the page's script and style, and the conversation as JSON parts. It reads files.

    The redactor replaces texts in the title and in all parts; with None they stay as they are.
    """
    parts: dict[str, Json] = {
        "conversation": item.model_dump(),
        "outline": outline(timeline, 1, 2**31).model_dump(mode="json"),
        **{f"rows-{at // ROWS}": rows[at : at + ROWS] for at in range(0, len(rows), ROWS)},
        **dict(_prompt_parts(timeline)),
    }
    title = item.title or item.conversation
    if redactor is not None:
        title = redact_text(redactor, title)
        parts = {name: redact_json(redactor, value) for name, value in parts.items()}
    script = _inline((FOLDER / "index.js").read_text(encoding="utf-8"))
    style = (FOLDER / "index.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src blob:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types worker"
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            '<div id="page"></div>',
            *(_part(name, value) for name, value in parts.items()),
            f'<script type="module">{script}</script>',
            "</html>",
        ]
    )


def _inline(script: str) -> str:
    """Return the script as it may stand in a page: no text in it ends the element or begins a comment."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _part(name: str, value: Json) -> str:
    """Return a part as data, in which no text can end the element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="part-{name}">{text}</script>'


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _prompt_parts(timeline: Timeline) -> Iterator[tuple[str, Json]]:
    """Yield parts of up to `PROMPTS` requests as `prompts-0`, …, then of up to `MESSAGES` values as `messages-0`, ….

    A request has the numbers of its system text, its tools and its messages among the values of all later parts, so
    each of them is stored once.
    """
    numbers: dict[str, int] = {}
    messages: list[Json] = []
    prompts: list[Json] = []
    for prompt in show_prompts(timeline):
        for name in ("system", "tools"):
            prompt[name] = _number(numbers, messages, prompt[name])
        rows = prompt["messages"]
        assert isinstance(rows, list)
        prompt["messages"] = [_number(numbers, messages, row) for row in rows]
        prompts.append(prompt)
    for at in range(0, len(prompts), PROMPTS):
        yield f"prompts-{at // PROMPTS}", prompts[at : at + PROMPTS]
    for at in range(0, len(messages), MESSAGES):
        yield f"messages-{at // MESSAGES}", messages[at : at + MESSAGES]


def _number(numbers: dict[str, int], messages: list[Json], value: Json) -> int:
    """Return the number of a value among the messages, and add it if it is new."""
    text = dumps(value)
    if text not in numbers:
        numbers[text] = len(messages)
        messages.append(value)
    return numbers[text]
