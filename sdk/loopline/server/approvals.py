"""Signed approvals: the server signs each approval that it shows, and takes an answer only with that signature."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import Any

from loopline.clock import Clock
from loopline.conversations import Conversation, questions_of
from loopline.events import question_digest
from loopline.models import Json, JsonObject
from loopline.server.problems import RequestProblem
from loopline.timeline import ConversationKey, TimelineLog, open_timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingApproval:
    """A call that waits for the user's approval. `digest` is that of what is approved.

    A program's call that stays open has no arguments here: its question has them.
    """

    call_id: str
    question: str
    digest: str
    tool: str = ""
    arguments: JsonObject | None = None


class ApprovalSigner:
    """Signs approvals, and checks the signatures that come with answers.

    A signature holds for one call with its arguments, in one conversation of one user, for `seconds`. It counts for
    nothing once the call no longer waits: an answer or a stop revokes it. If it is not `required`, an answer may come
    without one.
    """

    def __init__(self, key: bytes, clock: Clock, *, seconds: int, required: bool) -> None:
        self._key = key
        self._clock = clock
        self._seconds = seconds
        self.required: bool = required

    def sign(self, conversation: ConversationKey, call_id: str, digest: str) -> str:
        """Return the signed approval of a call, valid from now on."""
        expires = int(self._clock.now().timestamp()) + self._seconds
        return f"{call_id}.{expires}.{self._mac(conversation, call_id, digest, expires)}"

    def signature(self, conversation: ConversationKey) -> Callable[[str, str], str] | None:
        """Return what signs an approval for a dialect, from its call and digest; None if none is required."""
        return partial(self.sign, conversation) if self.required else None

    def check(
        self,
        conversation: ConversationKey,
        waiting: Mapping[str, WaitingApproval],
        values: Mapping[str, Json],
        approvals: Mapping[str, str],
    ) -> None:
        """Let answers pass to calls that wait, with the signed approvals by call id.

        Raises:
            RequestProblem: an answer to an approval lacks its signature, or has another or an expired one.
        """
        for call_id in values:
            if call_id in waiting and (self.required or call_id in approvals):
                text = approvals.get(call_id, "")
                self._check(conversation, waiting[call_id], text)

    def _check(self, conversation: ConversationKey, call: WaitingApproval, text: str) -> None:
        where = "GET …/approvals shows the calls that wait, each with its approval"
        if not text:
            raise RequestProblem(
                HTTPStatus.FORBIDDEN,
                f"{call.call_id} awaits approval: answer with the signed approval; {where}",
            )
        expires = _expiry(text, call.call_id)
        mac = self._mac(conversation, call.call_id, call.digest, expires)
        is_right = hmac.compare_digest(
            text.encode(errors="surrogatepass"), f"{call.call_id}.{expires}.{mac}".encode()
        )
        if not is_right or expires <= self._clock.now().timestamp():
            raise RequestProblem(
                HTTPStatus.FORBIDDEN,
                f"the approval of {call.call_id} was not signed here for this call, or has expired; {where}",
            )

    def _mac(self, conversation: ConversationKey, call_id: str, digest: str, expires: int) -> str:
        owner = [conversation.tenant, conversation.project, conversation.user, conversation.name]
        fields = json.dumps(["approval", *owner, call_id, digest, expires])
        return hmac.new(self._key, fields.encode(), sha256).hexdigest()


def approved_call(approval: str) -> str:
    """Return the id of the call that a signed approval names; empty if it is none."""
    parts = approval.rsplit(".", 2)
    return parts[0] if len(parts) == 3 else ""


def _expiry(approval: str, call_id: str) -> int:
    text = approval.removeprefix(f"{call_id}.").partition(".")[0]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0


async def waiting_approvals(
    log: TimelineLog, talk: Conversation[Any]
) -> dict[str, WaitingApproval]:
    """Return the calls of a conversation that wait for approval, in order: paused ones, and those that stay open."""
    timeline = await open_timeline(log, talk.conversation)
    approvals = [
        WaitingApproval(
            call_id=call_id,
            question=pending.question,
            digest=pending.digest,
            tool=turn.open_calls[call_id].tool,
            arguments=turn.open_calls[call_id].arguments,
        )
        for turn in timeline.resumable
        for call_id, pending in turn.unanswered.items()
        if pending.kind == "approval"
    ]
    approvals += [
        WaitingApproval(
            call_id=question.call_id, question=question.question, digest=question_digest(question)
        )
        for _, question in questions_of(timeline)
        if question.kind == "approval"
    ]
    return {approval.call_id: approval for approval in approvals}
