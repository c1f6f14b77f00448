"""The pages of the documentation, and the fences, code words, links and headings on them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"

SHELLS = {"bash", "sh", "shell", "zsh"}
MISNAMED = {"py", "python3", "pycon", "shell-session", "sh-session", "shellsession"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A fenced example. `line` is that of its opening; `words` are those of its info string."""

    path: Path
    line: int
    language: str
    text: str
    title: str = ""
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{shown(self.path)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether this is an example to execute, not a file or something to look at."""
        return self.language in {"python", "console"} and not self.title

    @property
    def exit_code(self) -> int:
        """What its commands exit with: 0, or what `exit=2` in the info string says."""
        codes = [int(word.removeprefix("exit=")) for word in self.words if word.startswith("exit=")]
        return codes[-1] if codes else 0


def shown(path: Path) -> str:
    """The path as a test id shows it."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def pages() -> list[Path]:
    """The README and every page below docs."""
    return [README, *sorted((ROOT / "docs").rglob("*.md"))]


def fences(path: Path) -> list[Fence]:
    """The page's fenced examples, from top to bottom."""
    return [_fence(path, token) for token in _tokens(path) if token.type == "fence"]


def faults(fence: Fence) -> Iterator[str]:
    """What keeps this fence from being an example that the suite can check."""
    if not fence.language:
        yield "name its language: python, console, text, json, …"
    if fence.language in SHELLS and not is_set_up(fence):
        yield "what a person types is `console`; a shell fence is one line of the README"
    if fence.language in MISNAMED:
        yield "name it `python` or `console`, so that it runs"
    if Path(fence.title).is_absolute() or ".." in Path(fence.title).parts:
        yield "a title is a path inside the page's folder"
    if fence.language == "console" and not fence.text.startswith("$ "):
        yield "a console begins with `$ ` and a command"
    for word in fence.words:
        if fence.language != "console" or not re.fullmatch(r"repo|exit=\d+", word):
            yield f"{word!r} means nothing here: title=path, and for a console repo or exit=n"


def is_set_up(fence: Fence) -> bool:
    """Whether this is a command line of the README that does its own set-up, alone in its fence."""
    alone = len(fence.text.splitlines()) == 1
    return fence.path == README and fence.language in SHELLS and alone


def code_words(path: Path) -> list[str]:
    """What the page's prose sets as `code`."""
    return [token.content for token in _inline(path) if token.type == "code_inline"]


def links(path: Path) -> list[str]:
    """Where the page's links and images lead."""
    targets = [token.attrGet("href") or token.attrGet("src") for token in _inline(path)]
    return [str(target) for target in targets if target]


def anchors(path: Path) -> set[str]:
    """The names of the page's headings, as a forge makes them."""
    tokens = _tokens(path)
    slugs = [_slug(text) for opening, text in pairwise(tokens) if opening.type == "heading_open"]
    counts: Counter[str] = Counter()
    names: set[str] = set()
    for slug in slugs:
        names.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return names


def _slug(heading: Token) -> str:
    words = "".join(child.content for child in heading.children or [])
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def _fence(path: Path, token: Token) -> Fence:
    language, *words = token.info.split() or [""]
    titles = [word.removeprefix("title=").strip("\"'") for word in words if word[:6] == "title="]
    return Fence(
        path=path,
        line=(token.map or [0])[0] + 1,
        language=language,
        text=token.content,
        title=titles[-1] if titles else "",
        words=tuple(word for word in words if word[:6] != "title="),
    )


def _inline(path: Path) -> list[Token]:
    return [child for token in _tokens(path) for child in token.children or []]


@cache
def _tokens(path: Path) -> list[Token]:
    return MarkdownIt().enable("table").parse(path.read_text("utf-8"))
