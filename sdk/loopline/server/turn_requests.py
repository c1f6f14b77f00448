"""Conversations on a server: every route sends its messages and answers through them, which admits and audits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, Unpack

from msgspec.structs import replace

from loopline import conversations
from loopline import timeline as tl
from loopline.errors import ConflictError, LooplineError
from loopline.files import Attachment
from loopline.models import Json, dumps, one_line, well_formed
from loopline.react import Limits
from loopline.server.bodies import FILES
from loopline.server.bundle_host import BundleHost

_ANSWERS = tl.BodyUnion[tl.UserAnswer](tl.UserAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A message or answers that were sent to a turn.

    `after` is the seq after which the turn's new events are. `submission` is None if the answers went to calls of a turn
    that was running already; then `is_first` is False if a call had got another answer before.
    """

    turn: int
    after: int
    submission: conversations.Submission | None = None
    is_first: bool = True

    @classmethod
    def of_message(cls, submission: conversations.Submission) -> Self:
        """Return the request of a message that was sent. Its own block is the first of its events."""
        receipt = submission.receipt
        return cls(turn=receipt.turn, after=receipt.seq - 1, submission=submission)


@dataclass(frozen=True, slots=True)
class ServedConversation:
    """A conversation on a server."""

    host: BundleHost
    conversation: conversations.Conversation[Any]

    @property
    def key(self) -> tl.ConversationKey:
        """The key of the conversation."""
        return self.conversation.conversation

    async def submit(
        self,
        text: str,
        *,
        attachments: Sequence[Attachment] = (),
        when_busy: conversations.WhenBusy = "queue",
        key: str = "",
        webhook: str = "",
        tools: Sequence[tl.ClientTool] = (),
        **limits: Unpack[Limits],
    ) -> conversations.Submission:
        """Send a message and return once it is stored; its turn runs in the background, and may call `tools`.

        A message with a `key` that was used in the conversation before is not stored again. `webhook` is a URL that is called
        when the turn has ended; an empty text means none.

        Raises:
            RequestProblem: the server is full or shuts down, or too little of a quota is left.
            StoreError: the store cannot store the message.
            LooplineError: the message has more than `FILES` files, or the conversation does not accept it.
        """
        if len(attachments) > FILES:
            raise LooplineError(f"a message may have {FILES} files, not {len(attachments)}")
        async with self.host.turn_slot(self.key, key):
            submission = await self.conversation.submit(
                text, attachments=attachments, when_busy=when_busy, key=key, tools=tools, **limits
            )
            self.host.watch(self.key, submission, webhook)
        self.host.audit("message", self.key, seq=submission.receipt.seq)
        return submission

    async def resume(
        self,
        values: Mapping[str, Json],
        variation: conversations.Variation = conversations.AS_IT_IS,
        *,
        by: str = "",
        **limits: Unpack[Limits],
    ) -> conversations.Submission:
        """Answer calls of the paused turn and continue it; without values continue a turn that was cut off.

        `by` is the user who answers, empty for the user of the conversation. `variation` has other models or instructions for
        the rest of the turn.

        Raises:
            ConflictError: a call has been answered already.
            RequestProblem: the server refuses the turn, as for `submit`.
            LooplineError: no turn can be continued with these answers.
        """
        async with self.host.turn_slot(self.key):
            try:
                submission = await self.conversation.submit_resume(
                    values or None, variation=variation, by=by, **limits
                )
            except LooplineError:
                await self.check_unanswered(values)
                raise
            self.host.watch(self.key, submission)
        if variation is conversations.AS_IT_IS:  # a round that runs again has a line of its own
            self._audit_answer(values, by)
        return submission

    def _audit_answer(self, values: Mapping[str, Json], by: str) -> None:
        details = {"by": by} if by else {}
        self.host.audit("answer", self.key, calls=",".join(values), **details)

    async def send_answers(
        self, values: Mapping[str, Json], approvals: Mapping[str, str]
    ) -> TurnRequest:
        """Answer calls by id: calls of the running turn that stay open, or calls of the paused turn, which continues.

        Raises:
            RequestProblem: a signed approval is missing or wrong, 403.
            ConflictError: a call has been answered already, or only some of the calls stay open.
            LooplineError: no call waits for such an answer.
        """
        answered = await self.answer_open_calls(values, approvals)
        if answered is not None:
            return answered
        submission = await self.resume(values)
        receipt = submission.receipt
        return TurnRequest(turn=receipt.turn, after=receipt.seq, submission=submission)

    async def answer_open_calls(
        self, values: Mapping[str, Json], approvals: Mapping[str, str], *, by: str = ""
    ) -> TurnRequest | None:
        """Check the signed approvals, and answer calls of the running turn that stay open, in any process.

        `by` is the user who answers, empty for the user of the conversation. Return None if no value is for such a call.

        Raises:
            RequestProblem: a signed approval is missing or wrong, 403.
            ConflictError: only some values are for calls that stay open; nothing was answered.
        """
        waiting = await self.waiting() if values else {}
        self.host.approvals.check(self.key, waiting, values, approvals)
        open_calls = {call_id: call for call_id, call in waiting.items() if call.stays_open}
        if not values.keys() & open_calls.keys():
            return None
        if absent := values.keys() - open_calls.keys():
            names = well_formed(", ".join(absent))[:200]
            raise ConflictError(
                f"{names}: not an open call of the running turn, so nothing was answered; leave it out"
            )
        calls = [open_calls[call_id] for call_id in values]
        # Two answers to a call may arrive at once, also in two processes: the first one in the log counts.
        are_first = [
            await self.conversation.interrupts.answer(call_id, value, by=by)
            for call_id, value in values.items()
        ]
        self._audit_answer(values, by)
        return TurnRequest(
            turn=tl.turn_number(calls[0].turn_id),
            after=max(call.seq for call in calls),
            is_first=all(are_first),
        )

    async def check_unanswered(self, values: Mapping[str, Json]) -> None:
        """Check that no call in `values` has been answered. Calls that still wait are not checked.

        Raises:
            ConflictError: a call has an answer, which the message quotes.
        """
        values = {key: value for key, value in values.items() if key not in await self.waiting()}
        if not values:
            return
        blocks = await self.host.log.read(self.key, types=["user.answer"])
        for _, answer in reversed(list(_ANSWERS.among(blocks))):
            if answer.call_id in values:
                text = one_line(dumps(answer.value))
                raise ConflictError(f"{answer.call_id} has been answered already: {text}")

    async def waiting(self) -> dict[str, conversations.UnansweredCall]:
        """Return the waiting calls by call id, in order: paused calls, then open calls."""
        calls = conversations.unanswered_calls(await tl.open_timeline(self.host.log, self.key))
        return {call.call_id: call for call in calls}

    async def stop(self) -> bool:
        """Stop the running or paused turn. Return False if there was none."""
        is_stopped = await self.conversation.stop()
        self.host.audit("stop", self.key)
        return is_stopped

    async def fork(self, seq: int, name: str) -> ServedConversation:
        """Return the conversation of this name, which is created with the blocks up to `seq` if it does not exist.

        With a `seq` of 0 it is empty.
        """
        key = replace(self.key, name=name)
        if seq and await self.host.log.find(key) is None:
            with suppress(ConflictError):  # another request has created it meanwhile
                await self.conversation.fork(seq=seq, name=name)
                self.host.audit("fork", self.key, seq=seq, to=name)
        return await serve(self.host, key, await self.host.bundle_of(self.key))


async def serve(
    host: BundleHost, key: tl.ConversationKey, bundle_id: str = ""
) -> ServedConversation:
    """Return the conversation with the bundle of `BundleHost.harness_of`, whose errors it raises."""
    return ServedConversation(host, await host.conversation(key, bundle_id))
