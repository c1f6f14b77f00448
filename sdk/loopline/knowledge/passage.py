"""Passages: ranges of lines of files at a commit, which searches find and `ks:` refs read."""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile

from msgspec import structs

from loopline.errors import KnowledgeError, RefError
from loopline.knowledge.index_build import decode_text
from loopline.knowledge.links import is_markdown
from loopline.knowledge.repository import Repository, RepositoryFile
from loopline.knowledge.tree import KnowledgeConfig, Root, Tree, read_roots, repository_path
from loopline.refs import Characters, KnowledgeRef, Lines, Span, parse, split_lines
from loopline.search import SEPARATOR, Explanation, chunk
from loopline.search.sections import strip_closing_marks

_ATX = re.compile(r" {0,3}#{1,6}[ \t]")
_NAMED = re.compile(r"""\b(?:id|name)=["']([^"'\s>]+)["']""")
_OWN_NAME = re.compile(r"\{[^{}]*#([\w.:-]+)[^{}]*\}")
_MARKUP = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)|<[^<>]*>")


def heading_slug(heading: str) -> str:
    """Return the anchor of a heading: in lower case, with dashes for spaces, without punctuation."""
    return "-".join("".join(c for c in heading.lower() if c.isalnum() or c in " -_").split())


def document_headings(path: str, text: str) -> frozenset[str]:
    """Return the anchors of a Markdown document, in lower case; empty for other files.

    They are the slugs of its headings, with a number if a slug repeats, and its explicit ids and names.
    """
    if not is_markdown(path):
        return frozenset()
    return frozenset(_anchors(path, text))


def _anchors(path: str, text: str) -> Iterator[str]:
    """Yield the slugs of headings, numbered if they repeat, explicit ids, and the slugs of section titles."""
    counts = Counter[str]()
    for line in text.split("\n"):
        if match := _ATX.match(line):
            for slug in _heading_slugs(strip_closing_marks(line[match.end() :].strip(" \t"))):
                yield f"{slug}-{counts[slug]}" if counts[slug] else slug
                counts[slug] += 1
        for pattern in (_NAMED, _OWN_NAME):
            yield from (name.lower() for name in pattern.findall(line))
    for piece in chunk(path, text):
        yield from map(heading_slug, piece.title.split(SEPARATOR))


def _heading_slugs(heading: str) -> set[str]:
    """Return the possible slugs of a heading; programs differ in how they treat repeated spaces."""
    plain = _MARKUP.sub(r"\1", _OWN_NAME.sub("", heading)).strip()
    slug = "".join(c for c in plain.lower() if c.isalnum() or c in " -_")
    return {heading_slug(plain), slug.replace(" ", "-")}


CACHED_TREES = 4
LONGEST_LISTING = 200
LISTED_HEADINGS = 5
LARGEST_READ_BYTES = 32_000_000
DEFINING = frozenset({"def", "class", "async def"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A range of lines of a file at a commit, or the listing of a folder.

    `ref` names exactly this text. `lines` are the first and last line, counted from 1; (0, 0) for a folder. `commit` is
    the full id, empty for passages without a repository. `score`, from 0 to 1, and its explanation `why` are set only
    in search results.
    """

    ref: str
    title: str
    text: str
    path: str = ""
    commit: str = ""
    lines: tuple[int, int] = (0, 0)
    score: float | None = None
    why: Explanation | None = None


class PassageReader:
    """Reads the refs of one repository. The trees of the last few commits are cached."""

    def __init__(self, repository: Repository, roots: tuple[Root, ...], name: str = "") -> None:
        """Read with these roots. `name` is the first part of all paths in a space of several repositories, else empty."""
        self._repository = repository
        self._name = name
        self._roots = roots
        self._trees: OrderedDict[str, Tree] = OrderedDict()
        self._lock = threading.Lock()

    def space_path(self, path: str) -> str:
        """Return the path with the name of the repository before it, if it has one."""
        return f"{self._name}/{path}" if self._name else path

    def passage(self, parsed: KnowledgeRef, current: str) -> Passage:
        """Read a ref at its own commit, or at the commit `current` if it has none.

        The path of the ref does not include the name of the repository.

        Raises:
            RefError: the ref does not exist, or the file is too large or not text; the message lists similar names.
        """
        commit = current if parsed.commit is None else self._commit(parsed.commit, current)
        tree = self.tree(commit)
        path = parsed.path.strip("/")
        entry = tree.find(path)
        if entry is not None:
            return self._file(path, parsed, entry, commit)
        names = tree.listing(path)
        if names is None:
            raise RefError(self._missing_message(path, commit, tree))
        return self._folder(path, names, commit)

    def tree(self, commit: str) -> Tree:
        """Return the tree of a commit, given its full id."""
        with self._lock:
            if commit not in self._trees:
                self._trees[commit] = Tree(self._roots, self._repository.entries(commit))
            self._trees.move_to_end(commit)
            if len(self._trees) > CACHED_TREES:
                self._trees.popitem(last=False)
            return self._trees[commit]

    def _commit(self, abbreviation: str, current: str) -> str:
        """Return the full id of an abbreviated commit, `current` if that matches; raise RefError if it is missing."""
        if len(abbreviation) >= 4 and current.startswith(abbreviation):
            return current
        try:
            return self._repository.resolve(abbreviation)
        except KnowledgeError as error:
            now = self._repository.abbreviate(current)
            raise RefError(
                f"{self._repository.name} has no commit {abbreviation!r}; "
                f"the current one is {now}, which is read without @"
            ) from error

    def _file(self, path: str, parsed: KnowledgeRef, entry: RepositoryFile, commit: str) -> Passage:
        """Return a file, or the part for the heading or span in the ref.

        Raises:
            RefError: the file is binary or above 32 MB, or the heading or span does not exist.
        """
        if entry.size > LARGEST_READ_BYTES:
            raise RefError(
                f"ks:{self.space_path(path)} has {entry.size:,} bytes, and at most "
                f"{LARGEST_READ_BYTES:,} of a file are read"
            )
        text = decode_text(self._repository.read(commit, entry.path))
        if text is None:
            raise RefError(f"ks:{self.space_path(path)} is not text: it has {entry.size:,} bytes")
        span = parsed.span
        if parsed.heading and span is None:
            span = _lines_below(self.space_path(path), text, parsed.heading)
        part, lines, span = _part(self.space_path(path), text, span)
        ref = KnowledgeRef(
            path=self.space_path(path), commit=self._repository.abbreviate(commit), span=span
        )
        return Passage(
            ref=str(ref),
            title=_title(path, text, lines if span else (1, 1)),
            text=part,
            path=self.space_path(path),
            commit=commit,
            lines=lines,
        )

    def _folder(self, path: str, names: list[str], commit: str) -> Passage:
        """Return the listing of a folder as `ks:` refs, at most 200; a last line counts the remaining ones."""
        short = self._repository.abbreviate(commit)
        lines = [
            f"- {KnowledgeRef(path=self.space_path(name))}" for name in names[:LONGEST_LISTING]
        ]
        folder = self.space_path(path).rstrip("/")
        if len(names) > LONGEST_LISTING:
            lines.append(f"… {len(names) - LONGEST_LISTING} more")
        return Passage(
            ref=str(KnowledgeRef(path=f"{folder}/", commit=short)),
            title=f"{folder}/",
            text="\n".join(lines),
            path=folder,
            commit=commit,
        )

    def _missing_message(self, path: str, commit: str, tree: Tree) -> str:
        """Return the error text for a missing path: it is in a link or submodule, or similar paths are listed."""
        short = self._repository.abbreviate(commit)
        inside = repository_path(self._roots, path) or path
        for name, kind in self._repository.list_left_out(commit).items():
            if inside == name or inside.startswith(f"{name}/"):
                return f"{name} is a {kind} at {short}, and a knowledge space has none"
        near = tree.nearest(path) or tree.listing("") or []
        hint = (
            f"; there is {', '.join(f'ks:{self.space_path(name)}' for name in near[:8])}"
            if near
            else ""
        )
        return f"the knowledge space has no {self.space_path(path)!r} at {short}{hint}"


def parse_knowledge_ref(ref: str | KnowledgeRef) -> KnowledgeRef:
    """Parse a `ks:` ref; return a parsed ref unchanged.

    Raises:
        RefError: the text is not a ref, or not a `ks:` ref.
    """
    parsed = parse(ref) if isinstance(ref, str) else ref
    if not isinstance(parsed, KnowledgeRef):
        raise RefError(f"{ref} is not a ref of a knowledge space: these begin with ks:")
    return parsed


def read_passage(
    repository: Repository,
    config: KnowledgeConfig,
    ref: str | KnowledgeRef,
    commit: str,
    *,
    name: str = "",
) -> Passage:
    """Read a ref from a repository without an index, at its own commit or at `commit`. Blocks.

    `name` is the name of the repository in a space of several; the path of the ref then begins with it.

    Raises:
        RefError: the ref does not exist; the message lists similar names.
    """
    parsed = parse_knowledge_ref(ref)
    if name:
        parsed = structs.replace(parsed, path=parsed.path.strip("/").removeprefix(name).strip("/"))
    return PassageReader(repository, read_roots(config), name).passage(parsed, commit)


def _lines_below(path: str, text: str, heading: str) -> Lines:
    """Return the lines of the section of a heading or a definition, with all its subsections.

    Raise RefError, with up to five similar headings, if the text does not have the section.
    """
    wanted = heading_slug(heading)
    sections = [(piece.title.split(SEPARATOR), piece.lines) for piece in chunk(path, text)]
    for number, (titles, lines) in enumerate(sections):
        for depth, title in enumerate(titles, start=1):
            if wanted in _slugs(title):
                return Lines(lines[0], _last_below(titles[:depth], sections[number:]))
    slugs = dict.fromkeys(heading_slug(titles[-1]) for titles, _ in sections)
    near = get_close_matches(wanted, slugs, LISTED_HEADINGS, 0.0)
    hint = f"; there is {', '.join(f'#{slug}' for slug in near)}" if near else ""
    raise RefError(f"ks:{path} has no heading {heading!r}{hint}")


def _last_below(titles: list[str], sections: Sequence[tuple[list[str], tuple[int, int]]]) -> int:
    """Return the last line of the leading sections whose titles begin with `titles`."""
    below = takewhile(lambda section: section[0][: len(titles)] == titles, sections)
    return max(last for _, (_, last) in below)


def _slugs(title: str) -> set[str]:
    """Return the slugs of a title; a definition has one with its keyword and one without."""
    keyword, _, name = title.rpartition(" ")
    return (
        {heading_slug(title), heading_slug(name)} if keyword in DEFINING else {heading_slug(title)}
    )


def _part(path: str, text: str, span: Span | None) -> tuple[str, tuple[int, int], Span | None]:
    """Return the text of a span, its first and last line, and the span clipped to the text.

    Without a span return the whole text and None.

    Raise RefError if the span starts after the end of the text.
    """
    lines = split_lines(text)
    match span:
        case None:
            return text, (min(1, len(lines)), len(lines)), None
        case Lines():
            if span.first > len(lines):
                raise RefError(f"ks:{path} has {len(lines)} lines, so none from {span.first} on")
            clipped = Lines(span.first, min(span.last, len(lines)))
            return (
                "".join(lines[clipped.first - 1 : clipped.last]),
                (clipped.first, clipped.last),
                clipped,
            )
        case Characters():
            if span.first > len(text):
                raise RefError(
                    f"ks:{path} has {len(text)} characters, so none from {span.first} on"
                )
            cut = Characters(span.first, min(span.last, len(text)))
            first = text.count("\n", 0, cut.first - 1) + 1
            last = text.count("\n", 0, cut.last - 1) + 1
            return text[cut.first - 1 : cut.last], (first, last), cut


def _title(path: str, text: str, lines: tuple[int, int]) -> str:
    """Return the title of the section that contains the first line, or the name of the file."""
    for section in chunk(path, text):
        if section.lines[1] >= lines[0]:
            return section.title
    return path.rpartition("/")[2]
