"""Replies: what one comes to that is whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from loopline.models import Reply, well_formed
from loopline.prompt import NATIVE, Answer, Calls, Decided, DecisionProtocol, Malformed
from loopline.react.typed_answers import TypedAnswer
from loopline.timeline import plan
from loopline.timeline.waiting import computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """How a whole reply is read.

    Without a `protocol` its text is the answer. `before` is its beginning, where an earlier reply was cut off, and
    `steps` how many steps the current plan has. An `answer` is held to its type.
    """

    protocol: DecisionProtocol | None
    before: str = ""
    steps: int = 0
    answer: TypedAnswer | None = None

    async def read(self, reply: Reply) -> tuple[Reply, Decided, str]:
        """Return the reply with its thinking, what it decides, and the marks that led its answer."""
        size = len(self.before) + len(reply.text)
        return await computed(partial(self._read, reply), characters=size)

    def _read(self, reply: Reply) -> tuple[Reply, Decided, str]:
        read = self._decoded(reply)
        decided, marks = self._without_marks(read)
        if self.answer is not None:
            decided = self._typed(self.answer, reply, decided)
            if not isinstance(decided, Calls):  # a call that is the answer goes back as its text
                reply = replace(reply, echo=None if reply.calls else reply.echo)
        if not isinstance(read, Malformed):
            thinking = "\n".join(filter(None, (reply.thinking, read.thinking)))
            discarded = reply.text
            if not isinstance(decided, Malformed):
                discarded = decided.discarded
            elif decided.raw == reply.text:
                discarded = read.discarded
            reply = replace(reply, thinking=thinking, discarded=well_formed(discarded))
        return reply, decided, marks

    def _typed(self, answer: TypedAnswer, reply: Reply, decided: Decided) -> Decided:
        """Return the decision with its answer held to the type; a reply may begin anew what was cut off."""
        typed, protocol = answer.read(decided), self.protocol
        if not isinstance(typed, Malformed) or protocol is None or reply.calls:
            return typed
        if self.before:
            alone = answer.read(protocol.decode(reply))
            return alone if isinstance(alone, Answer) else typed
        return typed if protocol.name == NATIVE else replace(typed, raw=well_formed(reply.text))

    def _decoded(self, reply: Reply) -> Decided:
        """Return what is decided; what was written before a reply was cut off is the beginning of it."""
        if self.protocol is None:
            return Answer("", well_formed(reply.text))
        if self.before and not reply.calls:
            whole = self.protocol.decode(replace(reply, text=self.before + reply.text))
            if not isinstance(whole, Malformed):
                return whole
        return self.protocol.decode(reply)

    def _without_marks(self, decided: Decided) -> tuple[Decided, str]:
        """Return the decision without the marks of the plan's steps that lead its answer, and these."""
        match decided:
            case Answer(text=text) if self.steps:
                marks, answer = plan.split_marks(text, self.steps)
                if answer.strip():
                    return replace(decided, text=answer), marks
                # It only acknowledged: what it is to say is still to come.
                problem = "The reply held only plan marks: call a tool or answer."
                return Malformed(text, problem), marks
            case _:
                return decided, ""


def joined_notes(notes: str, marks: str) -> str:
    """Join notes and the marks that led an answer."""
    return "\n".join(part for part in (notes, marks) if part)


def words_of(decided: Decided) -> str:
    """Return the words of a decision, whatever it is."""
    match decided:
        case Answer(text=text) | Calls(notes=text) | Malformed(raw=text):
            return text
