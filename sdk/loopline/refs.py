"""Refs: names of everything in a conversation, by which it can be read again.

`parse` turns text into one of the classes below, and `str` turns it back. A ref with a number, version, digest or
commit is *pinned*: it always reads the same bytes. A ref without one *moves*: it names the newest item.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args
from urllib.parse import unquote

from msgspec import Struct, structs

from loopline.errors import RefError

Document = Literal[
    "conv.timeline.v1", "conv:sources_pool", "conv:plans", "conv:notes", "conv:feedback"
]
_DOCUMENTS: tuple[Document, ...] = get_args(Document)
FORMS = (
    "ar:<turn>.<type>[.<n>]",
    "ar:<turn>.artifacts.<name>[@n]",
    "ar:plan.latest:<plan_id>",
    "tc:<turn>.<call_id>.call|result",
    "fi:<turn>.files|outputs|user.attachments/<path>[@n]",
    "so:sources_pool[1,3-5]",
    "su:<turn>.conv.range.summary[.n]",
    "sk:<namespace>.<skill>[/<path>][@<digest>]",
    "ks:<path>[@<commit>][#L<a>-L<b>|#<heading>]",
    "cv:<conversation>/<ref>",
    "ef:<tenant>:<project>:chatbot:<stage>:<user>:<conversation>:<turn>:<role>:<path>",
    *(f"artifact:{name}" for name in _DOCUMENTS),
)

_ESCAPED = re.compile(r"[%@#\[\]\s\x00-\x1f\x7f]+")
_PERCENT = [f"%{byte:02X}" for byte in range(256)]


def encode(path: str, *, also: str = "") -> str:
    """Percent-encode `% @ # [ ]`, white space, control characters and those in `also`, as UTF-8."""

    def escape(match: re.Match[str]) -> str:
        return "".join([_PERCENT[byte] for byte in match[0].encode("utf-8", "surrogatepass")])

    pattern = re.compile(f"{_ESCAPED.pattern}|[{re.escape(also)}]+") if also else _ESCAPED
    return pattern.sub(escape, path)


def decode(text: str) -> str:
    """Decode the percent-encoding of `encode`.

    Raises:
        RefError: the escapes are not valid UTF-8.
    """
    try:
        return unquote(text, errors="surrogatepass")
    except UnicodeDecodeError as error:
        raise RefError(f"{text!r} has an escape that is not valid UTF-8") from error


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines `first` to `last` of a text, counted from 1, both included; only a newline ends a line."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"#L{self.first}-L{self.last}"


def split_lines(text: str) -> list[str]:
    """Split the text into lines, which keep their newlines; only a newline ends a line."""
    return io.StringIO(text, newline="\n").readlines()


@dataclass(frozen=True, slots=True)
class Characters:
    """The characters `first` to `last` of a text, counted from 1, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"#C{self.first}-C{self.last}"


Span = Lines | Characters


def _span(span: Span | None) -> str:
    return "" if span is None else str(span)


def _pin(version: int | str | None) -> str:
    return "" if version is None else f"@{version}"


def _number(n: int | None) -> str:
    return "" if n is None else f".{n}"


def block_ref(turn_id: str, type: str, n: int) -> str:
    """Format the ref of the n-th block of a type in a turn, without building a `BlockRef`."""
    return f"ar:{turn_id}.{type}.{n}"


def newest_ref(turn_id: str, type: str) -> str:
    """Format the ref of the newest block of a type in a turn."""
    return f"ar:{turn_id}.{type}"


class BlockRef(Struct, frozen=True, kw_only=True):
    """The n-th block of a type in a turn, counted from 1; without `n` the newest."""

    turn_id: str
    type: str
    n: int | None = None
    span: Span | None = None

    def __str__(self) -> str:
        if self.n is None:
            return newest_ref(self.turn_id, self.type) + _span(self.span)
        return block_ref(self.turn_id, self.type, self.n) + _span(self.span)


class ArtifactRef(Struct, frozen=True, kw_only=True):
    """An artifact that a workflow stored under a name in a turn; without `version` the newest."""

    turn_id: str
    name: str
    version: int | None = None
    span: Span | None = None

    def __str__(self) -> str:
        name = encode(self.name)
        return f"ar:{self.turn_id}.artifacts.{name}{_pin(self.version)}{_span(self.span)}"


class PlanRef(Struct, frozen=True, kw_only=True):
    """The newest snapshot of a plan; the id may be any text, also with colons."""

    plan_id: str

    def __str__(self) -> str:
        return f"ar:plan.latest:{self.plan_id}"


def call_ref(turn_id: str, call_id: str, part: Literal["call", "result"]) -> str:
    """Format the ref of a call or of its result."""
    return f"tc:{turn_id}.{call_id}.{part}"


class CallRef(Struct, frozen=True, kw_only=True):
    """A tool call or its result."""

    turn_id: str
    call_id: str
    part: Literal["call", "result"]
    span: Span | None = None

    def __str__(self) -> str:
        return call_ref(self.turn_id, self.call_id, self.part) + _span(self.span)


Area = Literal["files", "outputs", "user.attachments"]


class FileRef(Struct, frozen=True, kw_only=True):
    """A file of a turn; without `version` the newest."""

    turn_id: str
    area: Area
    path: str
    version: int | None = None
    span: Span | None = None

    def __str__(self) -> str:
        path = encode(self.path)
        return f"fi:{self.turn_id}.{self.area}/{path}{_pin(self.version)}{_span(self.span)}"


class SourcesRef(Struct, frozen=True, kw_only=True):
    """Sources of the pool, as ranges `(first, last)` of their numbers, both included."""

    ranges: tuple[tuple[int, int], ...]
    span: Span | None = None

    def __str__(self) -> str:
        items = (f"{a}" if a == b else f"{a}-{b}" for a, b in self.ranges)
        return f"so:sources_pool[{','.join(items)}]{_span(self.span)}"


class SummaryRef(Struct, frozen=True, kw_only=True):
    """The n-th summary that a compaction wrote in a turn, counted from 1; without `n` the newest."""

    turn_id: str
    n: int | None = None
    span: Span | None = None

    def __str__(self) -> str:
        return f"su:{self.turn_id}.conv.range.summary{_number(self.n)}{_span(self.span)}"


class SkillRef(Struct, frozen=True, kw_only=True):
    """The text of a skill or, with a `path`, a file in its folder; without `digest` its current content."""

    namespace: str
    skill: str
    digest: str | None = None
    span: Span | None = None
    path: str = ""

    def __str__(self) -> str:
        path = f"/{encode(self.path)}" if self.path else ""
        return f"sk:{self.namespace}.{self.skill}{path}{_pin(self.digest)}{_span(self.span)}"


class KnowledgeRef(Struct, frozen=True, kw_only=True):
    """A file of the knowledge space, or some of its lines; without `commit` its current content.

    `heading` selects the lines of a section or a definition in the file. A ref that was read has their line numbers
    instead.
    """

    path: str
    commit: str | None = None
    span: Span | None = None
    heading: str = ""

    def __str__(self) -> str:
        heading = f"#{encode(self.heading)}" if self.heading else ""
        return f"ks:{encode(self.path)}{_pin(self.commit)}{heading}{_span(self.span)}"


class ConversationRef(Struct, frozen=True, kw_only=True):
    """A ref in another conversation of the same user."""

    conversation: str
    ref: Ref

    def __str__(self) -> str:
        return f"cv:{encode(self.conversation, also='/')}/{self.ref}"


class HostedRef(Struct, frozen=True, kw_only=True):
    """A hosted file. The ref locates it and gives no right to read it."""

    tenant: str
    project: str
    stage: str
    user_id: str
    conversation: str
    turn_id: str
    role: str
    path: str

    def __str__(self) -> str:
        ids = (self.stage, self.user_id, self.conversation, self.turn_id, self.role)
        names = (encode(name, also=":") for name in (self.tenant, self.project, "chatbot", *ids))
        return f"ef:{':'.join(names)}:{encode(self.path)}"


class DocumentRef(Struct, frozen=True, kw_only=True):
    """A document that is made of the whole conversation when it is read."""

    name: Document
    span: Span | None = None

    def __str__(self) -> str:
        return f"artifact:{self.name}{_span(self.span)}"


SpannedRef = (
    BlockRef
    | ArtifactRef
    | CallRef
    | FileRef
    | SourcesRef
    | SummaryRef
    | SkillRef
    | KnowledgeRef
    | DocumentRef
)
Ref = SpannedRef | PlanRef | ConversationRef | HostedRef

_SPAN = re.compile(r"#([LC])([1-9]\d{0,9})(?:-\1?([1-9]\d{0,9}))?\Z")
_ITEM = re.compile(r"\s*([1-9]\d{0,9})\s*(?:[-–]\s*([1-9]\d{0,9})\s*)?\Z")
_TURN = r"(?P<turn_id>[A-Za-z0-9_-]+)"
_NUMBER = r"(?:\.(?P<n>[1-9]\d{0,9}))?"
_VERSION = r"(?:@(?P<version>[1-9]\d{0,9}))?"
_ARTIFACT = re.compile(rf"{_TURN}\.artifacts\.(?P<name>.*?){_VERSION}\Z", re.DOTALL)
_BLOCK = re.compile(rf"{_TURN}\.(?P<type>[A-Za-z][A-Za-z_]*(?:\.[A-Za-z][A-Za-z_]*)*){_NUMBER}\Z")
_CALL = re.compile(rf"{_TURN}\.(?P<call_id>[A-Za-z0-9_-]+)\.(?P<part>call|result)\Z")
_FILE = re.compile(
    rf"{_TURN}\.(?P<area>files|outputs|user\.attachments)/(?!@[1-9]\d{{0,9}}\Z)(?P<path>.+?){_VERSION}\Z",
    re.DOTALL,
)
_SKILL = re.compile(
    r"(?P<namespace>[\w-]+)\.(?P<skill>[\w.-]+?)(?:/(?P<path>[^@]+))?(?:@(?P<digest>[0-9a-f]{6,64}))?\Z"
)
_KNOWLEDGE = re.compile(
    r"(?!@[^@#]+(?:#|\Z))(?P<path>[^#]+?)(?:@(?P<commit>[^@#]+))?(?:#(?P<heading>.*))?\Z", re.DOTALL
)
_SUMMARY = re.compile(rf"{_TURN}\.conv\.range\.summary{_NUMBER}\Z")
_CONVERTED: dict[str, Callable[[str], object]] = {
    "n": int,
    "version": int,
    **dict.fromkeys(("name", "path", "heading"), decode),
}
"""The conversion of the fields that are not the text itself."""


def parse(text: str) -> Ref:
    """Parse a ref, ignoring white space around it.

    Raises:
        RefError: `text` is not a ref; the message lists the forms of refs.
    """
    namespace, colon, body = text.strip().partition(":")
    if not colon or namespace not in _PARSERS or not body:
        raise RefError(f"not a ref: {text!r}; refs look like {', '.join(FORMS)}")
    ref = _PARSERS[namespace](body)
    if ref is None:
        forms = [form for form in FORMS if form.startswith(f"{namespace}:")]
        raise RefError(f"not a ref: {text!r}; {namespace}: refs look like {' or '.join(forms)}")
    return ref


def replace_span(ref: SpannedRef, span: Span | None) -> SpannedRef:
    """Return the ref with another span."""
    return structs.replace(ref, span=span)


def _split_span(text: str) -> tuple[str, Span | None]:
    """Split the span, None if missing, off the end of a ref; raise a RefError if it ends before its start."""
    match = _SPAN.search(text)
    if match is None:
        return text, None
    first = int(match[2])
    last = int(match[3]) if match[3] else first
    if last < first:
        raise RefError(f"{match[0]!r} ends before its start: write the smaller number first")
    kind = Lines if match[1] == "L" else Characters
    return text[: match.start()], kind(first, last)


def _parse_form(
    kind: Callable[..., Ref], match: Callable[[str], re.Match[str] | None], text: str
) -> Ref | None:
    """Make a ref from a text with a span at its end; the groups of the match are the fields of the ref.

    None if the text does not match; a RefError if the span is reversed.
    """
    text, span = _split_span(text)
    found = match(text)
    if found is None:
        return None
    fields = {
        name: _CONVERTED[name](value) if name in _CONVERTED else value
        for name, value in found.groupdict().items()
        if value is not None
    }
    return kind(**fields, span=span)


def _parse_ar(text: str) -> Ref | None:
    if text.startswith("plan.latest:") and len(text) > len("plan.latest:"):
        return PlanRef(plan_id=text.removeprefix("plan.latest:"))
    artifact = _parse_form(ArtifactRef, _ARTIFACT.match, text)
    return _parse_form(BlockRef, _BLOCK.match, text) if artifact is None else artifact


def _parse_so(text: str) -> Ref | None:
    """Parse a `so:` ref after its prefix; None if it is not a list of sources, or a range is reversed."""
    text, span = _split_span(text)
    if not (text.startswith("sources_pool[") and text.endswith("]")):
        return None
    items = [_ITEM.match(item) for item in text[len("sources_pool[") : -1].split(",")]
    ranges = [(int(m[1]), int(m[2] or m[1])) for m in items if m is not None]
    if len(ranges) != len(items) or any(last < first for first, last in ranges):
        return None
    return SourcesRef(ranges=tuple(ranges), span=span)


def _parse_cv(text: str) -> Ref | None:
    conversation, slash, inner = text.partition("/")
    if not slash or not conversation or inner.startswith("cv:"):
        return None
    return ConversationRef(conversation=decode(conversation), ref=parse(inner))


def _parse_ef(text: str) -> Ref | None:
    """Parse an `ef:` ref after its prefix, and decode its parts; None if a part is missing or empty."""
    parts = text.split(":", 8)
    if len(parts) != 9 or parts[2] != "chatbot" or not all(parts):
        return None
    tenant, project, _, stage, user_id, conversation, turn_id, role, path = map(decode, parts)
    return HostedRef(
        tenant=tenant,
        project=project,
        stage=stage,
        user_id=user_id,
        conversation=conversation,
        turn_id=turn_id,
        role=role,
        path=path,
    )


def _parse_artifact(text: str) -> Ref | None:
    name, span = _split_span(text)
    for document in _DOCUMENTS:
        if document == name:
            return DocumentRef(name=document, span=span)
    return None


_PARSERS: dict[str, Callable[[str], Ref | None]] = {
    "ar": _parse_ar,
    "fi": partial(_parse_form, FileRef, _FILE.match),
    "tc": partial(_parse_form, CallRef, _CALL.match),
    "so": _parse_so,
    "su": partial(_parse_form, SummaryRef, _SUMMARY.match),
    "sk": partial(_parse_form, SkillRef, _SKILL.match),
    "ks": partial(_parse_form, KnowledgeRef, _KNOWLEDGE.match),
    "cv": _parse_cv,
    "ef": _parse_ef,
    "artifact": _parse_artifact,
}
