"""The contents of conversations as the endpoints show them: artifacts of turns, states and feedback."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, JsonValue

from loopline import timeline as tl
from loopline.reader import source_row
from loopline.refs import HostedRef
from loopline.timeline.feedback import FeedbackEntry

InputBody = tl.UserPrompt | tl.UserFollowup | tl.UserSteer
ShownBody = (
    InputBody
    | tl.Completion
    | tl.UserAttachment
    | tl.FileAdded
    | tl.Thinking
    | tl.Notes
    | tl.ToolPending
)
_SHOWN = tl.BodyUnion[ShownBody](ShownBody)
_INPUTS = tl.BodyUnion[InputBody](InputBody)
_STORED_FILES = tl.BodyUnion[tl.UserAttachment | tl.FileAdded](tl.UserAttachment | tl.FileAdded)
_HEADERS = tl.BodyUnion[tl.TurnHeader](tl.TurnHeader)
State = Literal["idle", "in_progress", "error"]
Stage = Literal["message", "file", "attachment", "citable"]
Role = Literal["user", "assistant", "artifact"]
REACTION_KIND = "turn.log.reaction"


class ArtifactAnswer(BaseModel):
    """A message, file or other content of a turn: its type, its time, its ref and its data."""

    type: str
    ts: str
    path: str
    data: dict[str, JsonValue]


class FetchedTurn(BaseModel):
    """A turn with its artifacts."""

    turn_id: str
    artifacts: list[ArtifactAnswer]


class FetchAnswer(BaseModel):
    """The turns of a conversation."""

    user_id: str
    conversation_id: str
    conversation_title: str
    turns: list[FetchedTurn]
    bundle_id: str
    bundle_ids: list[str]


class ReactionAnswer(BaseModel):
    """A reaction to a turn."""

    turn_id: str
    ts: str
    text: str
    reaction: Literal["ok", "not_ok", "neutral"] | None
    confidence: float | None
    origin: Literal["user", "machine"]
    rn: str


@dataclass(frozen=True, slots=True)
class TurnViews:
    """The turns of a conversation, from all its blocks. With `materialize`, files have their bytes in base64."""

    key: tl.ConversationKey
    timeline: tl.Timeline
    materialize: bool = False

    def turns(self, turn_ids: Collection[str]) -> list[FetchedTurn]:
        """Return the turns of these ids in the order of their first shown blocks, each with its artifacts.

        The current reactions of a turn follow its other artifacts. A turn without a block of `ShownBody` is left out.
        """
        by_turn: dict[str, list[ArtifactAnswer]] = {}
        for block, body in _SHOWN.among(self.timeline):
            if block.turn_id in turn_ids:
                by_turn.setdefault(block.turn_id, []).extend(self._artifacts(block, body))
        for turn_id, artifacts in by_turn.items():
            entries = self.timeline.reactions.in_force_for(tl.turn_number(turn_id))
            artifacts.extend(map(self._reaction_artifact, entries))
        return [
            FetchedTurn(turn_id=turn, artifacts=artifacts) for turn, artifacts in by_turn.items()
        ]

    def bundles(self) -> list[str]:
        """Return the ids of the bundles that ran the turns, in the order of their first turn."""
        return list(dict.fromkeys(header.bundle for _, header in _HEADERS.among(self.timeline)))

    def answer_text(self, turn: tl.Turn) -> str:
        """Return the answer of a turn with its citations as links, or an empty text if it has none."""
        return self._link_citations(turn.completion.text) if turn.completion else ""

    def user_text(self, number: int) -> str:
        """Return the texts of the user in a turn, joined by line breaks."""
        inputs = _INPUTS.among(block for block in self.timeline if block.turn == number)
        return "\n".join(body.text for _, body in inputs)

    def _artifacts(self, block: tl.Block, body: ShownBody) -> Iterator[ArtifactAnswer]:
        """Yield the artifacts of a block: two for an answer with sources, otherwise one.

        Files that are not external outputs, and calls that wait for an approval or for the client, yield none.
        """
        match body:
            case tl.UserPrompt() | tl.UserFollowup() | tl.UserSteer():
                message: dict[str, JsonValue] = {"text": body.text, "kind": body.type}
                yield self._artifact("chat:user", block, message, "message", "user")
            case tl.Completion(sources_used=used):
                answer: dict[str, JsonValue] = {"text": self._link_citations(body.text)}
                yield self._artifact("chat:assistant", block, answer, "message", "assistant")
                if used:
                    rows: list[JsonValue] = [source_row(sid, self.timeline) for sid in used]
                    yield self._artifact("artifact:solver.program.citables", block, {"items": rows})
            case tl.UserAttachment():
                file = self._file(body.name, body.mime, body.size, tl.workspace.file_bytes(body))
                yield self._artifact("artifact:user.attachment", block, file, "attachment", "user")
            case tl.FileAdded(area="outputs", visibility="external"):
                file = self._file(body.path, body.mime, body.size, tl.workspace.file_bytes(body))
                yield self._artifact("artifact:assistant.file", block, file, "file", "assistant")
            case tl.Thinking(text=text):
                yield self._artifact("conv.thinking.stream", block, {"text": text})
            case tl.Notes(text=text):
                yield self._artifact("conv.timeline_text.stream", block, {"text": text})
            case tl.ToolPending(kind="question", client=False, question=question):
                call: dict[str, JsonValue] = {"call_id": body.call_id, "question": question}
                yield self._artifact("conv.clarification_questions", block, call)
            case tl.FileAdded() | tl.ToolPending():
                pass

    def _artifact(
        self,
        kind: str,
        block: tl.Block,
        data: dict[str, JsonValue],
        stage: Stage | None = None,
        role: Role = "artifact",
    ) -> ArtifactAnswer:
        """Return an artifact of the type `kind`.

        With a `stage`, its data include the resource name for `stage` and `role`.
        """
        if stage is not None:
            data = {**data, "rn": resource_name(self.key, block, stage, role)}
        return ArtifactAnswer(type=kind, ts=tl.iso_time(block.ts), path=block.ref, data=data)

    def _file(self, name: str, mime: str, size: int, data: bytes) -> dict[str, JsonValue]:
        row: dict[str, JsonValue] = {"filename": name, "mime": mime, "size_bytes": size}
        if self.materialize:
            row["base64"] = b64encode(data).decode()
        return row

    def _reaction_artifact(self, entry: FeedbackEntry) -> ArtifactAnswer:
        """Return a reaction as an artifact; its resource name and turn id are in `meta` too."""
        reaction = reaction_answer(self.key, entry)
        data: dict[str, JsonValue] = {
            "reaction": reaction.model_dump(mode="json"),
            "meta": {"rn": reaction.rn, "turn_id": reaction.turn_id, "kind": REACTION_KIND},
        }
        return self._artifact(REACTION_KIND, entry.block, data)

    def _link_citations(self, text: str) -> str:
        """Replace the citations in a text by Markdown links to their sources; ids of unknown sources are removed."""
        sources = self.timeline.pool.sources

        def link(sids: Iterable[int]) -> str:
            return "".join(f"[[{sid}]]({sources[sid].url})" for sid in sids if sid in sources)

        return tl.citations.resolve(text, link, newest=self.timeline.pool.newest)


def resource_name(key: tl.ConversationKey, block: tl.Block, stage: Stage, role: Role) -> str:
    """Return the resource name of a block's content, by which `by-rn` finds it."""
    path = f"{block.type}.{block.n}"
    if _STORED_FILES.has(block.body):
        path = _file_path(block.body)
    return str(
        HostedRef(
            tenant=key.tenant,
            project=key.project,
            stage=stage,
            user_id=key.user,
            conversation=key.name,
            turn_id=block.turn_id,
            role=role,
            path=path,
        )
    )


def _file_path(file: tl.UserAttachment | tl.FileAdded) -> str:
    match file:
        case tl.UserAttachment(name=name):
            return name
        case tl.FileAdded(path=path, version=version):
            return f"{version}/{path}"


def reaction_answer(key: tl.ConversationKey, entry: FeedbackEntry) -> ReactionAnswer:
    """Return a reaction as clients get it, with the time that its client gave. The confidence of a user's reaction is 1."""
    feedback = entry.feedback
    is_of_user = feedback.origin == "user"
    return ReactionAnswer(
        turn_id=entry.block.turn_id,
        ts=tl.iso_time(tl.to_utc(feedback.rated_at or entry.block.ts)),
        text=feedback.text,
        reaction=feedback.reaction,
        confidence=1.0 if is_of_user else feedback.confidence,
        origin=feedback.origin,
        rn=resource_name(key, entry.block, "message", "artifact"),
    )


def state_of(timeline: tl.Timeline) -> State:
    """Return `in_progress` if a turn runs or will run, `error` if the last turn ended with an error, or `idle`."""
    unfinished = [turn for turn in timeline.resumable if not turn.pending or turn.answers]
    if unfinished or timeline.queued:
        return "in_progress"
    numbers = list(timeline.turns)
    last = timeline.turn(numbers[-1]).exit if numbers else None
    return "error" if last is not None and last.reason == "error" else "idle"
