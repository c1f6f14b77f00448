"""What listeners hear of a reply while it is written, and that it is what the log keeps of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from loopline.errors import ModelUnavailable
from loopline.events import Delta, Event, Listen
from loopline.models import TextDelta
from loopline.prompt import Channel, DecisionProtocol, Piece
from loopline.react.typed_answers import TypedAnswer
from loopline.timeline import Body, Completion, Draft, Notes, Pool, Thinking, citations, plan
from loopline.timeline.waiting import computed, in_parts


class Resolved:
    """A listener before another one, which hears the answer channel with its citations resolved.

    A token becomes `[1]`, `[2]`, …: which of the cited sources it is, in the order of their first
    mention, as `TurnResult.sources` has them; `[?]` is a number that no source has. Whatever is not of
    the answer passes as it is. One stands for one reply: `close` gives out what is held back.
    """

    def __init__(self, listen: Listen, pool: Pool) -> None:
        self._listen = listen
        self._pool = pool
        self._attempt = 1
        self._resolver = self._begun()

    def __call__(self, event: Event) -> None:
        """Hear an event, and let the other one hear what can be told of it now."""
        match event:
            case Delta(type="delta", channel="answer", text=text, attempt=attempt):
                self._attempt = attempt
                self._tell(self._resolver.feed(text))
            case Delta(type="reset", channel="answer"):
                self._resolver = self._begun()
                self._listen(event)
            case _:
                self._listen(event)

    def close(self) -> None:
        """The reply is whole."""
        self._tell(self._resolver.close())
        self._resolver = self._begun()

    def _begun(self) -> citations.Resolver:
        marks = citations.Marks(self._pool.sources)
        return citations.Resolver(marks, newest=self._pool.newest)

    def _tell(self, text: str) -> None:
        if text:
            self._listen(Delta(type="delta", channel="answer", text=text, attempt=self._attempt))


class ChannelTexts:
    """The texts that listeners have of each channel, since the last block that one of them became.

    `written` is the answer in pieces as the model wrote it, with its citations unresolved.
    """

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._texts: dict[str, list[str]] = {}
        self.written: list[str] = []
        self.attempt: int = 1

    def __call__(self, event: Event) -> None:
        """Pass an event on, and keep the text it adds to a channel."""
        match event:
            case Delta(type="delta", channel=channel, text=text):
                self._texts.setdefault(channel, []).append(text)
            case _:
                pass
        self._listen(event)

    def __contains__(self, channel: str) -> bool:
        return channel in self._texts

    @property
    def whole(self) -> dict[str, str]:
        """The text of each channel."""
        return {channel: "".join(parts) for channel, parts in self._texts.items()}

    def void(self) -> None:
        """Take back every text that is in no block."""
        self.written = []
        self._align({})

    def begin(self, texts: Mapping[str, str], written: list[str], attempt: int) -> None:
        """Have a request begin with these texts, which an earlier reply began."""
        self.attempt, self.written = attempt, written
        self._align(texts)

    async def settle(self, bodies: Iterable[Body], pool: Pool) -> None:
        """Have each channel hold the text of what is about to be recorded, and nothing else."""
        self._align(await self._stored(bodies, pool))
        self._texts.clear()
        self.written = []

    async def settle_cut(self, bodies: Iterable[Body], pool: Pool) -> None:
        """Settle a reply that was cut off: its thinking is whole, and the next reply goes on with the rest."""
        stored = await self._stored(bodies, pool)
        if "thinking" in stored:
            self._align({**self.whole, **stored})
            self._texts.pop("thinking")

    def _align(self, texts: Mapping[str, str]) -> None:
        heard = self.whole
        self._texts = {channel: [text] for channel, text in texts.items() if text}
        for channel in dict.fromkeys([*heard, *texts]):
            text, before = texts.get(channel, ""), heard.get(channel, "")
            if not text.startswith(before):
                self._listen(Delta(type="reset", channel=channel, attempt=self.attempt))
                before = ""
            if rest := text[len(before) :]:
                self._listen(Delta(type="delta", channel=channel, text=rest, attempt=self.attempt))

    async def _stored(self, bodies: Iterable[Body], pool: Pool) -> dict[str, str]:
        """The texts of bodies by channel; a draft is heard where it was no answer from the beginning."""
        texts: dict[str, str] = {}
        for body in bodies:
            match body:
                case Thinking(text=text):
                    texts["thinking"] = texts.get("thinking", "") + text
                case Notes(text=text):
                    texts["notes"] = text
                case Completion(text=text):
                    marks = citations.Marks(pool.sources)
                    shown = partial(citations.resolve, text, marks, newest=pool.newest)
                    texts["answer"] = await computed(shown, characters=len(text))
                case Draft(text=text) if "draft" in self:
                    texts["draft"] = text.strip()
                case _:
                    pass
        return texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a reply is read while it is written.

    `steps` is how many steps the current plan has. `before` is the beginning of the reply, where an
    earlier one was cut off. The text `is_draft` where another request writes the answer. Of an `answer` that is
    held to a type, the compact JSON of its value is heard.
    """

    protocol: DecisionProtocol
    pool: Pool
    steps: int = 0
    before: str = ""
    is_draft: bool = False
    answer: TypedAnswer | None = None


class ReplyStream:
    """What listeners hear of one reply while it is written, as far as can be told by then.

    It begins with `begin`, which hears what was written before the reply.
    """

    def __init__(self, texts: ChannelTexts, reading: Reading) -> None:
        self._texts = texts
        self._reading = reading
        self._attempt = 1
        self._into: ChannelTexts = texts
        self._renew()

    def __call__(self, piece: TextDelta) -> None:
        """Hear the next piece."""
        if piece.channel == "thinking":
            self._tell("thinking", piece.text)
        else:
            self._pass(self._splitter.feed(piece.text))

    async def again(self, attempt: int, error: ModelUnavailable, seconds: float) -> None:
        """Void what was heard of an attempt that is given up; another follows."""
        self._texts.void()
        said = f"{error}; asked again in {seconds:.1f} s"
        self._texts(Delta(type="progress", channel="model", text=said, attempt=attempt))
        await self.begin(attempt + 1)

    def close(self) -> None:
        """The reply is whole."""
        self._pass(self._splitter.close())
        self._tell_all(self._marks.close())
        self._resolved.close()

    async def begin(self, attempt: int = 1) -> None:
        """Hear what was written before the reply, which listeners may have."""
        self._attempt = attempt
        self._renew()
        async for part in in_parts(self._reading.before):
            self._pass(self._splitter.feed(part))
        self._texts.begin(self._into.whole, self._written, attempt)
        self._into = self._texts

    def _renew(self) -> None:
        reading = self._reading
        self._splitter = reading.protocol.splitter()
        self._marks = MarkFilter(reading.steps)
        self._value = reading.answer.splitter() if reading.answer else None
        self._into = ChannelTexts(lambda _: None)
        self._written = list[str]()
        self._resolved = Resolved(self._hear, reading.pool)

    def _pass(self, pieces: Iterable[Piece]) -> None:
        for channel, text in pieces:
            if channel == "answer":
                self._tell_all(self._marks.feed(text))
            else:
                self._tell(channel, text)

    def _tell_all(self, pieces: Iterable[Piece]) -> None:
        """Tell what the beginning of an answer comes to; its marks are a line of the notes."""
        for channel, text in pieces:
            joint = "\n" if channel == "notes" and "notes" in self._into else ""
            self._tell(channel, joint + text)

    def _tell(self, channel: Channel, text: str) -> None:
        if channel == "answer" and self._value is not None:
            text = self._value.feed(text)
        name = "draft" if channel == "answer" and self._reading.is_draft else channel
        if name == "answer":
            self._written.append(text)
        if text:
            self._resolved(Delta(type="delta", channel=name, text=text, attempt=self._attempt))

    def _hear(self, event: Event) -> None:
        self._into(event)


class MarkFilter:
    """Takes off an answer that is being written the lines that acknowledge steps of the plan.

    `steps` is how many the plan has; without any nothing is held back.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._begun: str | None = "" if steps else None

    def feed(self, text: str) -> list[Piece]:
        """Return the next text of notes and answer."""
        if self._begun is None:
            return [("answer", text)]
        self._begun += text
        rest = plan.split_marks(self._begun, self._steps)[1]
        if len(self._begun) < LONGEST_MARKS and "\n" not in rest and plan.may_lead(rest):
            return []
        return self.close()

    def close(self) -> list[Piece]:
        """Return what is held back."""
        begun, self._begun = self._begun, None
        marks, rest = plan.split_marks(begun or "", self._steps)
        pieces: list[Piece] = [("notes", marks), ("answer", rest)]
        return [piece for piece in pieces if piece[1]]


LONGEST_MARKS = 2_000
"""Characters of marks that are held back until the answer begins; beyond that they are heard as answer."""
