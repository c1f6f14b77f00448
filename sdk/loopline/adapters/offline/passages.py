"""Passages: what a search or a read gave back, cut at its header lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADER = re.compile(r"^(?:\[\[S:(\d+)\]\] )?(?:(.*) — )?(ks:\S+)$")
_REF = re.compile(
    r"^ks:(?P<path>[^@#\s]+)(?P<commit>@[^#\s]+)?(?:#L(?P<first>\d+)(?:-L(?P<last>\d+))?)?$"
)
_CUT = re.compile(r"\n?^… [^\n]*\n*\Z", re.MULTILINE)
_PROSE = (".rst", ".txt", ".md", ".markdown", ".mdx", ".adoc", ".org", ".textile")
_TESTS = re.compile(r"(?:^|/)(?:tests?|testing|specs?|fixtures)/|(?:^|/)test_[^/]*$|_test\.\w+$")


@dataclass(frozen=True, slots=True)
class Passage:
    """Some lines of a file, word for word, citable under the number `sid`; `cut` when not all of it."""

    sid: int
    title: str
    ref: str
    text: str
    cut: bool = False

    @property
    def path(self) -> str:
        """The path inside the space, percent-encoded as it came."""
        match = _REF.match(self.ref)
        return match["path"] if match else self.ref.removeprefix("ks:")

    @property
    def lines(self) -> tuple[int, int] | None:
        """First and last line, counted from 1, or None when the ref names the whole."""
        match = _REF.match(self.ref)
        if match is None or match["first"] is None:
            return None
        return int(match["first"]), int(match["last"] or match["first"])

    @property
    def prose(self) -> bool:
        """Whether it is documentation rather than code, as far as its path tells."""
        return self.path.lower().endswith(_PROSE)

    @property
    def tests(self) -> bool:
        """Whether it belongs to tests."""
        return bool(_TESTS.search(self.path))


def passages(result: str) -> list[Passage]:
    """The citable passages of a result text, in the order they came."""
    found: list[Passage] = []
    header: re.Match[str] | None = None
    body: list[str] = []
    for line in result.split("\n"):
        match = _HEADER.match(line)
        if match is None or (match[1] is None and body and body[-1].strip()):
            body.append(line)
            continue
        found += _passage(header, body)
        header, body = match, []
    return found + _passage(header, body)


def _passage(header: re.Match[str] | None, body: list[str]) -> list[Passage]:
    """The passage below a header; none below one without a number, which cannot be cited."""
    if header is None or header[1] is None or len(header[1]) > 9:
        return []
    text = "\n".join(body)
    whole = _CUT.sub("", text)
    return [Passage(int(header[1]), header[2] or "", header[3], whole, cut=whole != text)]


def region(passage: Passage, *, around: int) -> str:
    """The ref of the passage with as many lines more on each side; unchanged when it names no lines."""
    if passage.lines is None:
        return passage.ref
    first, last = passage.lines
    pinned = passage.ref.partition("#")[0]
    return f"{pinned}#L{max(1, first - around)}-L{last + around}"
