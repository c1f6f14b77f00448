"""Citation tokens such as `[[S:1]]`, `[[S:2,3]]`, `[[S:1-4]]`: finding them outside code, and replacing them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

TOKEN_LIMIT = 256
"""The most characters of a token; a longer one is plain text."""
SPAN_LIMIT = 4_096
"""The limit of tokens and runs of backticks in a code span; a longer span is plain text."""
SID_LIMIT = 10_000
"""The most sids in all tokens of a text together; a token that exceeds the sum is plain text."""

_NUMBER = r"[0-9]{1,6}"
_ITEM = rf"{_NUMBER}(?:[ \t]*[-–][ \t]*{_NUMBER})?"
_TOKEN = re.compile(rf"\[\[[ \t]*[Ss][ \t]*:[ \t]*({_ITEM}(?:[ \t]*,[ \t]*{_ITEM})*)[ \t]*\]\]")
_BEGUN_ITEM = rf"{_NUMBER}[ \t]*(?:\]|[-–][ \t]*(?:{_NUMBER}[ \t]*\]?)?)?"
_BEGUN = re.compile(
    rf"\[(?:\[[ \t]*(?:[Ss][ \t]*(?::[ \t]*(?:{_ITEM}[ \t]*,[ \t]*)*(?:{_BEGUN_ITEM})?)?)?)?"
)
_PLAIN = re.compile(r"[^`\n\\\[]*")
_RUNS = {"`": re.compile("`*"), "~": re.compile("~*")}
_BRACKETS = re.compile(r"\[+")
_SPACES = re.compile(" +")
_BLANK = re.compile(r"[ \t\r\n]*\n")
_NO_BREAK = re.compile(r"[^\n]")
_MARKER = re.compile(r"#{1,6}|[-+*]|[0-9]{1,9}[.)]")
_INDENT = 3


@dataclass(frozen=True, slots=True)
class Citation:
    """One token: its start and end in the text, and the sids it names, in the order written."""

    start: int
    end: int
    sids: tuple[int, ...]


def find(text: str, *, newest: int) -> list[Citation]:
    """Return the citations of a text outside code, in order; ranges end at most at `newest`, the highest sid.

    Code is as in CommonMark: fences of backticks or tildes, also inside list items, and spans between equal runs
    of backticks within one paragraph. An indented block does not count as code here. A token of more than
    `TOKEN_LIMIT` characters, or beyond `SID_LIMIT` sids in the text, is plain text.
    """
    if "[[" not in text:
        return []
    scanner = _Scanner(newest)
    return [*scanner.feed(text), *scanner.close()]


def cited_sids(text: str, *, newest: int) -> tuple[int, ...]:
    """Return the sids that a text cites, each once, in the order of first mention."""
    return tuple(
        dict.fromkeys(sid for citation in find(text, newest=newest) for sid in citation.sids)
    )


class Marks:
    """A function from sids to the marks that people see: `[1]`, `[2]`, … in the order of first mention.

    An unknown sid becomes `[?]`; `numbers` maps the sids so far to their numbers.
    """

    def __init__(self, known: Container[int]) -> None:
        self._known_sids = known
        self.numbers: dict[int, int] = {}

    def __call__(self, sids: tuple[int, ...]) -> str:
        """Return the marks of one token."""
        return " ".join(self._mark(sid) for sid in sids)

    def _mark(self, sid: int) -> str:
        if sid not in self._known_sids:
            return "[?]"
        return f"[{self.numbers.setdefault(sid, len(self.numbers) + 1)}]"


def resolve(text: str, mark: Callable[[tuple[int, ...]], str], *, newest: int) -> str:
    """Replace each token of the text by `mark` of its sids."""
    tokens = find(text, newest=newest)
    return replace_spans(text, ((token.start, token.end, mark(token.sids)) for token in tokens))


def replace_spans(text: str, replacements: Iterable[tuple[int, int, str]]) -> str:
    """Replace parts of the text, each given as start, end and new text; they must be sorted and must not overlap."""
    pieces = list[str]()
    at = 0
    for start, end, replacement in replacements:
        pieces += [text[at:start], replacement]
        at = end
    return "".join([*pieces, text[at:]])


def prose(text: str) -> str:
    """Replace the characters of fenced code by spaces, so that indexes stay the same."""
    scanner = _Scanner(0)
    scanner.feed(text)
    scanner.close()
    fenced = scanner.fenced
    return replace_spans(text, ((a, b, _NO_BREAK.sub(" ", text[a:b])) for a, b in fenced))


class Resolver:
    """A resolver of citations in a text that arrives in pieces.

    `feed` and `close` together return the same text as `resolve` does for the full text, however it is split. Two kinds
    of text are held back: an incomplete token, of at most `TOKEN_LIMIT` characters, and the text after a token that may
    still become code, up to the end of its paragraph or `SPAN_LIMIT` tokens.
    """

    def __init__(self, mark: Callable[[tuple[int, ...]], str], *, newest: int) -> None:
        self._mark = mark
        self._scanner = _Scanner(newest)
        self._pending: list[str] = []
        self._from = 0

    def feed(self, text: str) -> str:
        """Add the next piece of the text, and return the resolved text that is certain."""
        self._pending.append(text)
        return self._release(self._scanner.feed(text))

    def close(self) -> str:
        """End the text, and return the resolved text that was held back."""
        return self._release(self._scanner.close())

    def _release(self, citations: Sequence[Citation]) -> str:
        """Return the text since the last call up to the settled index; marks replace its tokens, `citations`."""
        start = self._from
        end = self._scanner.settled
        if start == end:
            return ""
        pending = "".join(self._pending)
        self._pending = [pending[end - start :]]
        self._from = end
        marks = (
            (token.start - start, token.end - start, self._mark(token.sids)) for token in citations
        )
        return replace_spans(pending[: end - start], marks)


@dataclass(frozen=True, slots=True)
class _Run:
    """Backticks in a row; a run with an escaped first backtick opens a span one shorter."""

    start: int
    length: int
    opens: int


@dataclass(frozen=True, slots=True)
class _Fence:
    """An open fence; `column` is the column of its list item's content."""

    start: int
    mark: str
    length: int
    column: int


class _Scanner:
    """A scanner that reads a text in pieces, each character once, and separates tokens from code.

    `_step` is the current state: a function that reads from an index in the piece and returns the index that it reached,
    or None if it needs more text. Indexes in attributes count from the beginning of the full text.
    """

    def __init__(self, newest: int) -> None:
        self.fenced: list[tuple[int, int]] = []
        self._newest = newest
        self._sids_left = SID_LIMIT
        self._read = 0
        self._unread = ""
        self._over = False
        self._decided: list[Citation] = []
        # The runs and tokens of the paragraph since the first run that may open a code span.
        self._runs: list[_Run] = []
        self._tokens: list[Citation] = []
        # A line of backticks that opens a fence if no further backtick follows, and its tokens.
        self._opening: _Run | None = None
        self._info: list[Citation] = []
        self._fence: _Fence | None = None
        self._item = 0
        self._mark = "`"
        self._length = 0
        self._run_at = 0
        self._escaped = self._leads = self._heading = False
        self._head = ""
        self._column = 0
        self._line_at = 0
        self._step: Callable[[str, int], int | None] = self._indent

    @property
    def settled(self) -> int:
        """The index up to which all tokens are decided."""
        undecided = self._tokens or self._info
        return undecided[0].start if undecided else self._read

    def feed(self, piece: str) -> list[Citation]:
        """Read the next piece, and return the tokens that are now known to be outside code."""
        text = self._unread + piece
        at = 0
        while at < len(text):
            after = self._step(text, at)
            if after is None:
                break
            self._read += after - at
            at = after
        self._unread = text[at:]
        decided = self._decided
        self._decided = []
        return decided

    def close(self) -> list[Citation]:
        """End the text, and return the remaining tokens outside code."""
        self._over = True
        decided = self.feed("")
        if self._length:
            self._end_run()
        if self._opening:
            self._open_fence(self._opening.length)
        self._end_fence()
        self._settle()
        return [*decided, *self.feed("")]

    # At the beginning of a line, or of the content of a list item.

    def _indent(self, text: str, at: int) -> int:
        """Skip whitespace before the content of a line, and count its column; return the next index.

        A blank line ends the paragraph outside of fences.
        """
        match text[at]:
            case " ":
                run = _SPACES.match(text, at)
                end = run.end() if run else at + 1
                self._column += end - at
                return end
            case "\t":
                self._column += 4 - self._column % 4
            case "\r":
                pass
            case "\n":
                if self._fence is None:
                    self._settle()
                # All blank lines at once: a text of many blank lines would need a step for each.
                blank = _BLANK.match(text, at)
                end = blank.end() if blank else at + 1
                self._begin_line(self._read + end - at)
                return end
            case char:
                self._begin_content(char)
                return at
        return at + 1

    def _begin_content(self, char: str) -> None:
        """Select the state for the first character after the indent: a run, fenced text, or a possible marker.

        A fence ends if the line is indented less than the content of the fence's list item.
        """
        fence = self._fence
        if fence and self._column < fence.column:
            self._end_fence()
        self._item = min(self._item, self._column)
        within = self._fence.column if self._fence else self._item
        may_run = self._fence is None or self._fence.mark == char
        if char in _RUNS and self._column <= within + _INDENT and may_run:
            self._begin_run(char, leads=True)
        elif self._fence:
            self._step = self._pass
        else:
            self._head = ""
            self._step = self._marker

    def _marker(self, text: str, at: int) -> int:
        """Read a possible marker of a list item or a heading; a marker ends the paragraph, other text does not."""
        char = text[at]
        if char in "#-+*.)0123456789" and len(self._head) <= 10:
            self._head += char
            return at + 1
        self._step = self._text
        if char in " \t" and _MARKER.fullmatch(self._head):
            self._settle()
            if self._head[0] == "#":
                self._heading = True
            else:
                self._column += len(self._head)
                self._item = self._column + 1
                self._step = self._indent
        return at

    def _begin_line(self, at: int) -> None:
        self._escaped = self._heading = False
        self._column = 0
        self._line_at = at
        self._step = self._indent

    # Inside a line.

    def _text(self, text: str, at: int) -> int | None:
        """Read plain text, or one special character; return the next index, None if a token may be incomplete."""
        plain = _PLAIN.match(text, at)
        if plain and plain.end() > at:
            self._escaped = False
            return plain.end()
        match text[at]:
            case "`":
                self._confirm_no_fence()
                self._begin_run("`", leads=False)
                return at
            case "[":
                return self._bracket(text, at)
            case "\n":
                self._end_line()
            case _:
                self._escaped = not self._escaped
        return at + 1

    def _bracket(self, text: str, at: int) -> int | None:
        """Read the token that starts here and return its end; if this is not a token, return the next index.

        Return None if more text may complete a token. A token that exceeds the sum of `SID_LIMIT` sids is plain text.
        """
        self._escaped = False
        brackets = _BRACKETS.match(text, at)
        end = brackets.end() if brackets else at
        if end - at > 2:  # a token starts with the last two brackets
            return end - 2
        if end - at == 1 and end < len(text):
            return end
        token = _TOKEN.match(text, at, at + TOKEN_LIMIT)
        if token:
            sids = tuple(islice(_numbers(token[1], self._newest), self._sids_left + 1))
            if len(sids) > self._sids_left:
                return at + 1
            self._sids_left -= len(sids)
            self._take(Citation(self._read, self._read + len(token[0]), tuple(dict.fromkeys(sids))))
            return token.end()
        may_become_one = len(text) - at < TOKEN_LIMIT and _BEGUN.fullmatch(text, at)
        return None if may_become_one and not self._over else at + 1

    def _end_line(self) -> None:
        if self._opening:
            self._open_fence(self._opening.length)
        elif self._heading:
            self._settle()
        self._begin_line(self._read + 1)

    def _pass(self, text: str, at: int) -> int:
        end = text.find("\n", at)
        if end < 0:
            return len(text)
        self._begin_line(self._read + end + 1 - at)
        return end + 1

    # A run of backticks or tildes.

    def _begin_run(self, mark: str, *, leads: bool) -> None:
        self._mark = mark
        self._length = 0
        self._run_at = self._read
        self._leads = leads
        self._step = self._run

    def _run(self, text: str, at: int) -> int:
        """Count the characters of the current run; end the run if a different character follows in the piece."""
        run = _RUNS[self._mark].match(text, at)
        end = run.end() if run else at
        self._length += end - at
        if end < len(text):
            self._end_run()
        return end

    def _end_run(self) -> None:
        """Decide if the run opens a fence, may close the open fence, or is part of a code span; set the state."""
        length = self._length
        self._length = 0
        run = _Run(self._run_at, length, length - self._escaped)
        self._escaped = False
        self._step = self._text
        if self._fence:
            self._step = self._closing if length >= self._fence.length else self._pass
        elif not self._leads or length < 3:
            self._backticks(run)
        elif self._mark == "`":
            self._opening = run
        else:
            self._open_fence(length)
            self._step = self._pass

    def _closing(self, text: str, at: int) -> int:
        """Read the line after a run that may close the fence; the fence ends if only whitespace follows the run."""
        match text[at]:
            case " " | "\t" | "\r":
                return at + 1
            case "\n":
                self._end_fence()
                self._begin_line(self._read + 1)
                return at + 1
            case _:
                self._step = self._pass
                return at

    def _open_fence(self, length: int) -> None:
        self._opening = None
        self._info.clear()
        self._settle()
        self._fence = _Fence(self._run_at, self._mark, length, self._item)

    def _end_fence(self) -> None:
        if self._fence:
            end = self._read if self._over or self._step == self._closing else self._line_at
            self.fenced.append((self._fence.start, end))
            self._fence = None

    def _confirm_no_fence(self) -> None:
        """Treat the line that might open a fence as text, and store its tokens; do nothing if no such line is open."""
        if self._opening:
            opening = self._opening
            self._opening = None
            info = self._info
            self._info = []
            self._backticks(opening)
            for token in info:
                self._take(token)

    # Deciding between code and text.

    def _backticks(self, run: _Run) -> None:
        """Close the code span that this run ends and drop its tokens, or store the run; ignore runs of tildes."""
        if self._mark == "~":
            return
        if self._runs and run.length == self._runs[0].opens:
            self._runs.clear()
            self._tokens.clear()
        elif self._runs or run.opens:
            self._runs.append(run)
            self._limit_span(self._runs)

    def _take(self, token: Citation) -> None:
        """Store a token as undecided while it may be in the line of a fence or a code span, otherwise as decided."""
        if self._opening:
            self._info.append(token)
            self._limit_span(self._info)
        elif self._runs:
            self._tokens.append(token)
            self._limit_span(self._tokens)
        else:
            self._decided.append(token)

    def _limit_span(self, undecided: Sequence[_Run | Citation]) -> None:
        """Treat a span with too many tokens or runs as text, so that the tokens do not wait for its end."""
        if len(undecided) >= SPAN_LIMIT:
            self._confirm_no_fence()
            self._settle()

    def _settle(self) -> None:
        """End the paragraph: decide its tokens that are not in a code span, and drop those in code spans."""
        code = _spans(self._runs)
        starts = [start for start, _ in code]
        for token in self._tokens:
            before = bisect_right(starts, token.start)
            if before == 0 or code[before - 1][1] < token.start:
                self._decided.append(token)
        self._runs.clear()
        self._tokens.clear()


def _spans(runs: Sequence[_Run]) -> list[tuple[int, int]]:
    """Return the start of each code span and the start of the run that closes it, in order.

    A run is text if no later run has the length that it `opens`.
    """
    indexes: dict[int, list[int]] = {}
    for index, run in enumerate(runs):
        indexes.setdefault(run.length, []).append(index)
    spans = list[tuple[int, int]]()
    at = 0
    while at < len(runs):
        candidates = indexes.get(runs[at].opens, [])
        closer = bisect_right(candidates, at)
        if closer < len(candidates):
            spans.append((runs[at].start, runs[candidates[closer]].start))
            at = candidates[closer]
        at += 1
    return spans


def _numbers(items: str, newest: int) -> Iterator[int]:
    """Yield the sids in the items of a token; a range ends at most at `newest`, but always has its lower number."""
    if items.isdigit():
        yield int(items)
        return
    for item in items.split(","):
        first, dash, last = item.replace("–", "-").partition("-")
        low, high = sorted((int(first), int(last if dash else first)))
        yield low
        yield from range(low + 1, min(high, newest) + 1)


_TOKEN_START = re.compile(r"\[(?=\[[ \t]*[Ss][ \t]*:)")
_UNBOUND = re.compile(r"\[ (?=\[[ \t]*[Ss][ \t]*:)")


def unbind(text: str) -> str:
    """Turn each citation token into plain text: `[[S:1]]` becomes `[ [S:1]]`, an unbound token."""
    return _TOKEN_START.sub("[ ", text)


def find_unbound_numbers(text: str, newest: int) -> tuple[int, ...]:
    """Return the numbers in the unbound tokens of a text outside code; ranges end at most at `newest`."""
    return cited_sids(_UNBOUND.sub("[", text), newest=newest)


def bind(text: str, sids: Mapping[int, int]) -> str:
    """Turn unbound tokens into citations: `sids` maps their numbers to sids.

    Tokens in code, and numbers that are not in `sids`, stay plain text.
    """
    return _rewrite(text, sids, lambda numbers: f"[[S:{numbers}]]")


def renumber(text: str, numbers: Mapping[int, int]) -> str:
    """Replace the numbers in unbound tokens by those that `numbers` maps them to."""
    return _rewrite(text, numbers, lambda joined: f"[ [S:{joined}]]")


def _rewrite(text: str, numbers: Mapping[int, int], write: Callable[[str], str]) -> str:
    """Replace each token outside code by `write` of its mapped numbers, joined by commas; other numbers are dropped.

    Tokens without a mapped number, and tokens in code, become unbound. The text is unchanged if `numbers` is empty.
    """
    if not numbers:
        return text
    tokens = _UNBOUND.sub("[", text)
    pieces = list[str]()
    at = 0
    for token in find(tokens, newest=max(numbers)):
        bound = [numbers[sid] for sid in token.sids if sid in numbers]
        if bound:
            pieces += [unbind(tokens[at : token.start]), write(",".join(map(str, bound)))]
            at = token.end
    return "".join([*pieces, unbind(tokens[at:])])
