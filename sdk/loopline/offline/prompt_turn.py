"""The turn as its prompt shows it: the questions, the calls, and the passages in their results."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopline.models import AssistantMessage, Prompt, ToolMessage, UserMessage

_QUESTION = re.compile(r"\A\[ar:([^\]\s]+)\.user\.(?:prompt|followup|steer)(?:\.\d+)?\]\s*")
_LABEL = re.compile(r"\A\[[a-z]{2,8}:[^\]\n]*\][ \t]*(?:\n|\Z)")
_DRAFT = "[DRAFT] "
_RESULT = re.compile(r"\A\[RESULT (\S+)\] ([\w.-]+)\(.*?\): (\w+)\n(.*)\Z", re.DOTALL)
_RESULT_CHARACTERS = 160
_PASSAGE = re.compile(r"^(?:\[\[S:(\d{1,9})\]\] )?(?:(.*) — )?(ks:\S+)$", re.MULTILINE)
_CUT_NOTICE = re.compile(r"\n?^… [^\n]*\n*\Z", re.MULTILINE)
RANK_SMOOTHING = 6.0


@dataclass(frozen=True, slots=True)
class TurnCall:
    """A call of a tool with the text of its result; `round` is the index of the message that made the call."""

    tool: str
    query: str
    round: int
    text: str = ""
    ok: bool = False


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """The questions of a turn by the indexes of their messages, its calls in order, and the questions before it."""

    previous: tuple[str, ...]
    questions: dict[int, str]
    calls: tuple[TurnCall, ...]


def read_turn(prompt: Prompt) -> PromptTurn:
    """Find the current turn in a prompt.

    The turn starts with the first question after the last answer that has the turn id of the last question. An answer
    without a later question was held back, and does not end the turn.
    """
    texts: dict[int, str] = {}
    turn_ids: dict[int, str] = {}
    answers = [-1]
    calls: dict[str, TurnCall] = {}
    for index, message in enumerate(prompt.messages):
        if isinstance(message, AssistantMessage):
            if not message.calls:
                answers.append(index)
            for call in message.calls:
                query = str(call.arguments["query"]) if "query" in call.arguments else ""
                calls[call.call_id] = TurnCall(call.name, query, index)
        elif isinstance(message, ToolMessage) and message.call_id in calls:
            text = _LABEL.sub("", message.text, count=1)
            calls[message.call_id] = replace(calls[message.call_id], text=text, ok=message.ok)
        elif isinstance(message, UserMessage):
            label = _QUESTION.match(message.text)
            text = message.text[label.end() :] if label else message.text
            if text.strip() and (label or not _LABEL.match(text)):
                texts[index] = text.strip()
                turn_ids[index] = label[1] if label else ""
    last = max(texts, default=0)
    after = max(index for index in answers if index < max(last, 0))
    start = min((n for n in texts if n > after and turn_ids[n] == turn_ids[last]), default=0)
    return PromptTurn(
        previous=tuple(text for index, text in texts.items() if index < start),
        questions={index: text for index, text in texts.items() if index >= start},
        calls=tuple(call for call in calls.values() if call.round >= start),
    )


def answer_from_trace(prompt: Prompt) -> str:
    """Return the last draft in the prompt, otherwise a list of the tool results in it, otherwise ""."""
    texts = [message.text for message in prompt.messages if isinstance(message, UserMessage)]
    drafts = [text.removeprefix(_DRAFT) for text in texts if text.startswith(_DRAFT)]
    if drafts:
        return drafts[-1]
    lines = [_RESULT.sub(_list_result, text) for text in texts if _RESULT.match(text)]
    return "\n".join(
        ["The work ended before there was an answer. It gave:", *lines] if lines else []
    )


def _list_result(match: re.Match[str]) -> str:
    ref, tool, status, text = match.groups()
    first = (text.strip() or "nothing").splitlines()[0]
    return f"- {tool} ({status}): {first[:_RESULT_CHARACTERS]} — {ref}"


@dataclass(frozen=True, slots=True)
class CitablePassage:
    """Lines of a file, which an answer cites by the number `sid`; the best passage has the rank 1, the last nearly 0."""

    sid: int
    title: str
    ref: str
    text: str
    rank: float = 0.0

    @property
    def path(self) -> str:
        """The path in the space, percent-encoded as in the ref."""
        return self.ref.removeprefix("ks:").partition("#")[0].partition("@")[0]


def parse_passages(result: str) -> list[CitablePassage]:
    """Return the passages in the text of a result; passages without a number cannot be cited, and are left out."""
    parts = _PASSAGE.split(result)
    headings = zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True)
    return [
        CitablePassage(int(sid), title or "", ref, _CUT_NOTICE.sub("", body.strip("\n")))
        for sid, title, ref, body in headings
        if sid
    ]


def rank_passages(calls: Iterable[TurnCall]) -> list[CitablePassage]:
    """Return the passages in the results of calls, each once, in the order of their first result, with ranks.

    A rank is at most 1; passages near the top of several results rank higher. Results of failed calls are ignored.
    """
    passages: dict[int, CitablePassage] = {}
    ranks: dict[int, float] = {}
    for call in calls:
        for index, passage in enumerate(parse_passages(call.text) if call.ok else []):
            passages.setdefault(passage.sid, passage)
            ranks[passage.sid] = ranks.get(passage.sid, 0.0) + 1.0 / (RANK_SMOOTHING + index)
    best = max(ranks.values(), default=1.0)
    return [replace(passage, rank=ranks[sid] / best) for sid, passage in passages.items()]
