"""Questions and approvals that wait for the user, and the signatures that answers to approvals need."""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from loopline.clock import Clock
from loopline.conversations import UnansweredCall
from loopline.models import Json
from loopline.server.problems import RequestProblem, forbidden
from loopline.timeline import ConversationKey, read_approval


def deny(reason: str) -> Json:
    """Return the answer that denies an approval; `reason` may be empty."""
    return {"approved": False, "reason": reason} if reason else False


def decline(question: UnansweredCall | None, reason: str = "") -> Json:
    """Return the answer for a call that the user declines.

    It denies an approval, is an object with an `error` for a call of the client, and is a sentence for a question or None.
    An empty `reason` is left out; for a call of the client a default text replaces it.
    """
    match question:
        case UnansweredCall(kind="approval"):
            return deny(reason)
        case UnansweredCall(kind="client"):
            return {"error": reason or "The client did not run this call."}
        case _:
            return f"The user did not answer. {reason}".strip()


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """The answer that a text gives to a call; for an approval with the signature, by call id."""

    call_id: str
    value: Json
    approvals: Mapping[str, str] = field(default_factory=dict[str, str])


_CODE = re.compile(r"[A-Za-z2-7]{4}-[A-Za-z2-7]{4}", re.ASCII)
_FIRST_WORD = re.compile(r"(\w+)([.,;:!]?)\s*(.*)", re.DOTALL)


class ApprovalSigner:
    """Signs approvals, and checks the signatures that come with answers.

    A signature is valid for one call with its arguments, in one conversation of one user, for `seconds`. An answer or a
    stop revokes it, because then the call no longer waits. If signatures are not `required`, an answer without one is
    accepted, but a signature that is present is checked.
    """

    def __init__(self, key: bytes, clock: Clock, *, seconds: int, required: bool) -> None:
        self._key = key
        self._clock = clock
        self._seconds = seconds
        self.required: bool = required

    def sign(self, conversation: ConversationKey, call_id: str, digest: str) -> str:
        """Return the signed approval of a call, which expires `seconds` from now."""
        expires = int(self._clock.now().timestamp()) + self._seconds
        return f"{call_id}.{expires}.{self._mac(conversation, call_id, digest, expires)}"

    def signature(self, conversation: ConversationKey) -> Callable[[str, str], str] | None:
        """Return a function that signs an approval by call id and digest, or None if none is required."""
        return partial(self.sign, conversation) if self.required else None

    def code_maker(self, conversation: ConversationKey) -> Callable[[str, str], str] | None:
        """Return a function of a call id and a digest that returns the short code that approves the call in a text.

        A code, such as `K7QX-2MTD`, is valid for at least half of `seconds`, and never longer than `seconds`. The result is
        None if no signature is required.
        """
        return partial(self._newest_code, conversation) if self.required else None

    def read_text(
        self, conversation: ConversationKey, waiting: Sequence[UnansweredCall], text: str
    ) -> TextAnswer | None:
        """Return the answer that a text gives to one of the `waiting` calls, or None if it answers none.

        `yes` with the code of a call approves that call. Otherwise the text is for the first call: it answers a question, or
        begins with `no`, then perhaps a comma and a reason, and denies an approval. `yes` alone approves if no signature is
        required. Any other text does not answer an approval. If no call waits for approval, only a code in capitals counts
        as one, because `ok real-time` has the form of a code too.

        Raises:
            RequestProblem: the text approves, and its code is missing, or is not a valid code of a waiting call, 403.
        """
        words = text.strip().rstrip(".!").split(maxsplit=2)
        has_code = len(words) == 2 and read_approval(words[0]) and _CODE.fullmatch(words[1])
        if has_code and (words[1].isupper() or any(call.kind == "approval" for call in waiting)):
            for call in waiting:
                if call.kind == "approval" and self._has_code(conversation, call, words[1]):
                    return self._sign_answer(conversation, call, value=True)
            raise self._code_problem(conversation, waiting)
        if not waiting:
            return None
        first = waiting[0]
        if first.kind == "question":
            return TextAnswer(first.call_id, text)
        match = _FIRST_WORD.fullmatch(text.strip())
        word, mark, reason = match.groups() if match else ("", "", "")
        match read_approval(word):
            case True if not reason:
                if self.required:
                    raise self._code_problem(conversation, waiting)
                return self._sign_answer(conversation, first, value=True)
            case False if mark or not reason:
                return self._sign_answer(conversation, first, value=deny(reason))
            case _:
                return None

    def check(
        self,
        conversation: ConversationKey,
        waiting: Mapping[str, UnansweredCall],
        values: Mapping[str, Json],
        approvals: Mapping[str, str],
    ) -> None:
        """Check the signed approval of each answer in `values` to a call in `waiting` that awaits approval.

        The three mappings are by call id. If signatures are not required, an answer without a signed approval is accepted.

        Raises:
            RequestProblem: the signature of an answer is missing, wrong or expired, 403.
        """
        for call_id in values:
            is_approval = call_id in waiting and waiting[call_id].kind == "approval"
            if is_approval and (self.required or call_id in approvals):
                self._check(conversation, waiting[call_id], approvals.get(call_id, ""))

    def _check(self, conversation: ConversationKey, call: UnansweredCall, approval: str) -> None:
        """Raise a `RequestProblem`, 403, if the approval is empty, expired, or not signed here for this call."""
        where = "GET …/approvals returns the waiting calls with their signed approvals"
        if not approval:
            raise forbidden(
                f"{call.call_id} awaits approval: answer with the signed approval; {where}"
            )
        expires = _expiry(approval, call.call_id)
        mac = self._mac(conversation, call.call_id, call.digest, expires)
        is_right = hmac.compare_digest(
            approval.encode(errors="surrogatepass"), f"{call.call_id}.{expires}.{mac}".encode()
        )
        if not is_right or expires <= self._clock.now().timestamp():
            raise forbidden(
                f"the approval of {call.call_id} was not signed here for this call, or has expired; {where}"
            )

    def _sign_answer(
        self, conversation: ConversationKey, call: UnansweredCall, *, value: Json
    ) -> TextAnswer:
        approval = self.sign(conversation, call.call_id, call.digest)
        return TextAnswer(call.call_id, value, {call.call_id: approval})

    def _code_problem(
        self, conversation: ConversationKey, waiting: Sequence[UnansweredCall]
    ) -> RequestProblem:
        """Return the problem of a missing or wrong code, 403.

        It quotes the question of the first call that awaits approval, if there is one, and the words that approve the call.
        """
        text = "no call was approved: the code is missing, was used, or has expired."
        for call in [call for call in waiting if call.kind == "approval"][:1]:
            code = self._newest_code(conversation, call.call_id, call.digest)
            words = f"yes {code}" if self.required else "yes"
            text += f" To approve {call.call_id}, answer: {words}. It asks: {call.question}"
        return forbidden(text)

    def _period(self) -> int:
        """Return the number of the present period; a code is valid in its own period and the next one."""
        return int(self._clock.now().timestamp()) // max(self._seconds // 2, 1)

    def _newest_code(self, conversation: ConversationKey, call_id: str, digest: str) -> str:
        return self._code(conversation, call_id, digest, self._period())

    def _has_code(self, conversation: ConversationKey, call: UnansweredCall, code: str) -> bool:
        """Return whether `code`, in any letter case, is that of the call in this period or in the previous one."""
        period = self._period()
        codes = [
            self._code(conversation, call.call_id, call.digest, number)
            for number in (period, period - 1)
        ]
        return any(hmac.compare_digest(code.upper().encode(), right.encode()) for right in codes)

    def _code(self, conversation: ConversationKey, call_id: str, digest: str, period: int) -> str:
        mac = self._mac(conversation, call_id, f"code {digest}", period)
        text = base64.b32encode(bytes.fromhex(mac))[:8].decode()
        return f"{text[:4]}-{text[4:]}"

    def _mac(self, conversation: ConversationKey, call_id: str, digest: str, expires: int) -> str:
        owner = [conversation.tenant, conversation.project, conversation.user, conversation.name]
        fields = json.dumps(["approval", *owner, call_id, digest, expires])
        return hmac.new(self._key, fields.encode(), sha256).hexdigest()


def call_id_of(approval: str) -> str:
    """Return the call id in a signed approval, or an empty text if `approval` is not one."""
    parts = approval.rsplit(".", 2)
    return parts[0] if len(parts) == 3 else ""


def _expiry(approval: str, call_id: str) -> int:
    """Return the Unix time at which an approval expires; 0 if it is malformed."""
    text = approval.removeprefix(f"{call_id}.").partition(".")[0]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
