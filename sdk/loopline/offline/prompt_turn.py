"""The turn as its prompt shows it: the questions, the calls and their results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loopline.models import AssistantMessage, Message, Prompt, ToolCall, ToolMessage, UserMessage
from loopline.offline.evidence import CitablePassage, Evidence, RankedPassage
from loopline.tools import NO_ANSWER

_QUESTION = re.compile(r"\A\[ar:([^\]\s]+)\.user\.(?:prompt|followup|steer)(?:\.\d+)?\]\s*")
_LABEL = re.compile(r"\A\[[a-z]{2,8}:[^\]\n]*\][ \t]*(?:\n|\Z)")
_BUNDLE = re.compile(r"^Bundle: (.+)$", re.MULTILINE)
_DRAFT = "[DRAFT] "
_RESULT = re.compile(r"\A\[RESULT (\S+)\] ([\w.-]+)\(.*?\): (\w+)\n(.*)\Z", re.DOTALL)
_RESULT_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class UserQuestion:
    """A text of the user, the index of its message, and its turn if a label names it."""

    text: str
    index: int
    turn: str = ""


@dataclass(frozen=True, slots=True)
class PromptCall:
    """A call with its result, if there is one; `index` is that of the message that made it."""

    call: ToolCall
    index: int
    result: ToolMessage | None = None

    @property
    def ok(self) -> bool:
        """Return whether the call succeeded."""
        return self.result is not None and self.result.ok

    @property
    def text(self) -> str:
        """Return the text of the result without the ref in brackets before it."""
        return _LABEL.sub("", self.result.text, count=1) if self.result else ""

    @property
    def query(self) -> str:
        """Return the query of a search."""
        match self.call.arguments:
            case {"query": query}:
                return str(query)
            case _:
                return ""


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """The questions of this turn, the texts of those before it, and the calls of this turn in order."""

    previous: tuple[str, ...]
    questions: tuple[UserQuestion, ...]
    calls: tuple[PromptCall, ...]
    bundle: str

    def calls_of(self, tool: str) -> tuple[PromptCall, ...]:
        """Return the calls of one tool in this turn."""
        return tuple(call for call in self.calls if call.call.name == tool)


def read_turn(prompt: Prompt) -> PromptTurn:
    """Return the turn that the prompt is for."""
    questions = list(_questions(prompt.messages))
    start = _start(prompt.messages, questions)
    bundle = _BUNDLE.search(prompt.system)
    return PromptTurn(
        previous=tuple(question.text for question in questions if question.index < start),
        questions=tuple(question for question in questions if question.index >= start),
        calls=tuple(_calls(prompt.messages, start)),
        bundle=bundle[1].strip() if bundle else "",
    )


def answer_from_trace(prompt: Prompt) -> str:
    """Return the draft in the prompt, else the results of its calls, else an empty text."""
    texts = [message.text for message in prompt.messages if isinstance(message, UserMessage)]
    drafts = [text.removeprefix(_DRAFT) for text in texts if text.startswith(_DRAFT)]
    if drafts:
        return drafts[-1]
    lines = [_result_line(match) for match in map(_RESULT.match, texts) if match]
    return (
        "\n".join(["The work ended before there was an answer. It gave:", *lines]) if lines else ""
    )


def _result_line(match: re.Match[str]) -> str:
    ref, tool, status, text = match.groups()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
    return f"- {tool} ({status}): {first[:_RESULT_CHARACTERS]} — {ref}"


def _start(messages: Sequence[Message], questions: Sequence[UserQuestion]) -> int:
    """Return the index of the first question of the last turn that comes after the last answer.

    An answer with no question after it was held back, so it does not end the turn.
    """
    if not questions:
        return 0
    last = questions[-1]
    answers = [
        index
        for index, message in enumerate(messages[: last.index])
        if isinstance(message, AssistantMessage) and not message.calls
    ]
    after = answers[-1] + 1 if answers else 0
    return min(item.index for item in questions if item.index >= after and item.turn == last.turn)


def _questions(messages: Sequence[Message]) -> Iterator[UserQuestion]:
    """Yield the user messages with a question's label or without any label."""
    for index, message in enumerate(messages):
        if not isinstance(message, UserMessage):
            continue
        label = _QUESTION.match(message.text)
        text = message.text[label.end() :] if label else message.text
        if text.strip() and (label or not _LABEL.match(text)):
            yield UserQuestion(text.strip(), index, label[1] if label else "")


def _calls(messages: Sequence[Message], start: int) -> Iterator[PromptCall]:
    for index, message in enumerate(messages[start:], start):
        if isinstance(message, AssistantMessage):
            yield from _with_results(messages, index, message.calls)


def _with_results(
    messages: Sequence[Message], index: int, calls: Sequence[ToolCall]
) -> Iterator[PromptCall]:
    """Yield each call with its result, matched by id or, without ids, by order."""
    results: list[ToolMessage] = []
    for message in messages[index + 1 :]:
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            results.append(message)
    for number, call in enumerate(calls):
        by_id = [item for item in results if call.call_id and item.call_id == call.call_id]
        in_order = [item for item in results[number : number + 1] if item.name == call.name]
        yield PromptCall(call, index, next(iter(by_id or in_order), None))


_HEADER = re.compile(r"^(?:\[\[S:(\d+)\]\] )?(?:(.*) — )?(ks:\S+)$")
_CUT_NOTICE = re.compile(r"\n?^… [^\n]*\n*\Z", re.MULTILINE)
RANK_SMOOTHING = 6.0
PASSAGES_READ = 3
LINES_AROUND = 12


def parse_passages(result: str) -> list[CitablePassage]:
    """Return the citable passages of a result text in order."""
    passages: list[CitablePassage] = []
    header: re.Match[str] | None = None
    body: list[str] = []
    for line in result.split("\n"):
        match = _HEADER.match(line)
        if match is None or (match[1] is None and body and body[-1].strip()):
            body.append(line)
            continue
        passages += _passage(header, body)
        header, body = match, []
    return passages + _passage(header, body)


def _passage(header: re.Match[str] | None, body: list[str]) -> list[CitablePassage]:
    """Return the passage below a header; none if the header has no number to cite it by."""
    if header is None or header[1] is None or len(header[1]) > 9:
        return []
    text = "\n".join(body)
    content = _CUT_NOTICE.sub("", text)
    return [
        CitablePassage(int(header[1]), header[2] or "", header[3], content, cut=content != text)
    ]


def doubted_queries(searches: Sequence[PromptCall]) -> frozenset[str]:
    """Return the queries that the space says it probably holds no answer to."""
    return frozenset(
        search.query for search in searches if NO_ANSWER in search.text.partition("\n")[0]
    )


def rank_passages(
    searches: Sequence[PromptCall], reads: Sequence[PromptCall]
) -> tuple[list[RankedPassage], dict[str, int]]:
    """Return the passages ranked over all searches, and how many passages each search returned."""
    by_sid: dict[int, RankedPassage] = {}
    queries: dict[str, int] = {}
    for search in searches:
        passages = parse_passages(search.text) if search.ok else []
        queries[search.query] = len(passages)
        for index, passage in enumerate(passages):
            known = by_sid.get(passage.sid, RankedPassage(passage, 0.0))
            rank = known.rank + 1.0 / (RANK_SMOOTHING + index)
            found_by = known.queries | {search.query}
            by_sid[passage.sid] = RankedPassage(known.passage, rank, found_by)
    for read in reads:
        for passage in parse_passages(read.text) if read.ok else []:
            _rank_read(by_sid, passage)
    best = max((ranked.rank for ranked in by_sid.values()), default=0.0) or 1.0
    return [replace(ranked, rank=ranked.rank / best) for ranked in by_sid.values()], queries


def _rank_read(by_sid: dict[int, RankedPassage], passage: CitablePassage) -> None:
    """Rank a passage that was read as high as the best passage inside it."""
    inside = [ranked.rank for ranked in by_sid.values() if passage.contains(ranked.passage)]
    known = by_sid.get(passage.sid)
    if known is None or known.passage.cut or not known.passage.text:
        rank = max(*inside, 0.0, known.rank if known else 0.0)
        by_sid[passage.sid] = RankedPassage(passage, rank)


def refs_to_read(evidences: Sequence[Evidence]) -> list[str]:
    """Return the refs of the best passages of each question, with the lines around them."""
    passages: dict[str, CitablePassage] = {}
    for evidence in evidences:
        best: list[CitablePassage] = []
        for scored in evidence.scored:
            if len(best) >= PASSAGES_READ:
                break
            if scored.passage not in best:
                best.append(scored.passage)
        passages.update({passage.ref: passage for passage in best})
    return list(dict.fromkeys(passage.widened(LINES_AROUND) for passage in passages.values()))
