"""Passages: lines of a file at a commit, found by a search or read by a `ks:` ref."""

from __future__ import annotations

import posixpath
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
from loopline.knowledge.repository import Repository, RepositoryFile
from loopline.knowledge.tree import KnowledgeConfig, Root, Tree, configured_roots, repository_path
from loopline.refs import Characters, KnowledgeRef, Lines, Span, parse, split_lines
from loopline.search import SEPARATOR, Explanation, chunk

MARKDOWN = (".md", ".markdown", ".mdx")
_ATX = re.compile(r" {0,3}#{1,6}[ \t]")
_NAMED = re.compile(r"""\b(?:id|name)=["']([^"'\s>]+)["']""")
_OWN_NAME = re.compile(r"\{[^{}]*#([\w.:-]+)[^{}]*\}")
_MARKUP = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)|<[^<>]*>")


def heading_slug(heading: str) -> str:
    """Return a heading as a link names it: in lower case, with dashes for spaces, without punctuation."""
    return "-".join("".join(c for c in heading.lower() if c.isalnum() or c in " -_").split())


def document_headings(path: str, text: str) -> frozenset[str]:
    """Return the names that links to a Markdown document may end in; none for other files.

    These are its headings, numbered when one comes twice, and the names that it gives itself.
    """
    if posixpath.splitext(path)[1].lower() not in MARKDOWN:
        return frozenset()
    return frozenset(_names(path, text))


def _names(path: str, text: str) -> Iterator[str]:
    counts = Counter[str]()
    for line in text.split("\n"):
        if match := _ATX.match(line):
            for slug in _heading_slugs(_without_closing_marks(line[match.end() :])):
                yield f"{slug}-{counts[slug]}" if counts[slug] else slug
                counts[slug] += 1
        for pattern in (_NAMED, _OWN_NAME):
            yield from (name.lower() for name in pattern.findall(line))
    for piece in chunk(path, text):
        yield from map(heading_slug, piece.title.split(SEPARATOR))


def _without_closing_marks(heading: str) -> str:
    text = heading.strip(" \t")
    bare = text.rstrip("#")
    return bare.rstrip(" \t") if not bare or bare.endswith((" ", "\t")) else text


def _heading_slugs(heading: str) -> set[str]:
    """Return the names of a heading; those who print pages differ in what they make of spaces between signs."""
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
    """Lines of a file at a commit.

    `lines` count from 1 and include both ends; a folder has (0, 0). `commit` is the full id, or empty
    without a repository. A search gives a `score` from 0 to 1 and says `why`; otherwise both are None.
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
    """Resolves refs against the trees of a repository, and caches the last few trees."""

    def __init__(self, repository: Repository, roots: tuple[Root, ...], name: str = "") -> None:
        """`name` begins the paths of the passages, if the space has several repositories."""
        self._repository = repository
        self._name = name
        self._roots = roots
        self._trees: OrderedDict[str, Tree] = OrderedDict()
        self._lock = threading.Lock()

    def shown(self, path: str) -> str:
        """Return the path as refs have it: after the name of the repository, if it has one."""
        return f"{self._name}/{path}" if self._name else path

    def passage(self, parsed: KnowledgeRef, current: str) -> Passage:
        """Return what a ref names, whose path has no name before it, at its own commit or at `current`.

        Raises:
            RefError: the ref names nothing; the message lists what is there.
        """
        commit = current if parsed.commit is None else self._commit(parsed.commit, current)
        tree = self.tree(commit)
        path = parsed.path.strip("/")
        entry = tree.find(path)
        if entry is not None:
            return self._file(path, parsed, entry, commit)
        names = tree.listing(path)
        if names is None:
            raise RefError(self._unknown(path, commit, tree))
        return self._folder(path, names, commit)

    def tree(self, commit: str) -> Tree:
        """Return the files of a commit, given its full id."""
        with self._lock:
            if commit not in self._trees:
                self._trees[commit] = Tree(self._roots, self._repository.entries(commit))
            self._trees.move_to_end(commit)
            if len(self._trees) > CACHED_TREES:
                self._trees.popitem(last=False)
            return self._trees[commit]

    def _commit(self, abbreviation: str, current: str) -> str:
        if len(abbreviation) >= 4 and current.startswith(abbreviation):
            return current
        try:
            return self._repository.resolve(abbreviation)
        except KnowledgeError as error:
            name, now = self._repository.name, self._repository.abbreviate(current)
            raise RefError(
                f"{name} has no commit {abbreviation!r}; the current one is {now}, which is read without @"
            ) from error

    def _file(self, path: str, parsed: KnowledgeRef, entry: RepositoryFile, commit: str) -> Passage:
        if entry.size > LARGEST_READ_BYTES:
            raise RefError(
                f"ks:{self.shown(path)} has {entry.size:,} bytes, and at most "
                f"{LARGEST_READ_BYTES:,} of a file are read"
            )
        text = decode_text(self._repository.read(commit, entry.path))
        if text is None:
            raise RefError(f"ks:{self.shown(path)} is not text: it has {entry.size:,} bytes")
        span = parsed.span
        if parsed.heading and span is None:
            span = _lines_below(self.shown(path), text, parsed.heading)
        part, lines, span = _part(self.shown(path), text, span)
        ref = KnowledgeRef(
            path=self.shown(path), commit=self._repository.abbreviate(commit), span=span
        )
        return Passage(
            ref=str(ref),
            title=_title(path, text, lines if span else (1, 1)),
            text=part,
            path=self.shown(path),
            commit=commit,
            lines=lines,
        )

    def _folder(self, path: str, names: list[str], commit: str) -> Passage:
        short = self._repository.abbreviate(commit)
        lines = [f"- {KnowledgeRef(path=self.shown(name))}" for name in names[:LONGEST_LISTING]]
        folder = self.shown(path).rstrip("/")
        if len(names) > LONGEST_LISTING:
            lines.append(f"… {len(names) - LONGEST_LISTING} more")
        return Passage(
            ref=str(KnowledgeRef(path=f"{folder}/", commit=short)),
            title=f"{folder}/",
            text="\n".join(lines),
            path=folder,
            commit=commit,
        )

    def _unknown(self, path: str, commit: str, tree: Tree) -> str:
        short = self._repository.abbreviate(commit)
        inside = repository_path(self._roots, path) or path
        for name, kind in self._repository.left_out(commit).items():
            if inside == name or inside.startswith(f"{name}/"):
                return f"{name} is a {kind} at {short}, and a knowledge space has none"
        near = tree.nearest(path) or tree.listing("") or []
        hint = (
            f"; there is {', '.join(f'ks:{self.shown(name)}' for name in near[:8])}" if near else ""
        )
        return f"the knowledge space has no {self.shown(path)!r} at {short}{hint}"


def parse_knowledge_ref(ref: str | KnowledgeRef) -> KnowledgeRef:
    """Return the ref of a knowledge space that a text is.

    Raises:
        RefError: it is another ref, or none.
    """
    parsed = parse(ref) if isinstance(ref, str) else ref
    if not isinstance(parsed, KnowledgeRef):
        raise RefError(f"{ref} is no ref of a knowledge space: these begin with ks:")
    return parsed


def read_passage(
    repository: Repository,
    config: KnowledgeConfig,
    ref: str | KnowledgeRef,
    commit: str,
    *,
    name: str = "",
) -> Passage:
    """Return what a ref names in a space that need not be searched; blocks.

    `name` is that of the repository in a space of several; the ref's path begins with it.

    Raises:
        RefError: the ref names nothing; the message lists what is there.
    """
    parsed = parse_knowledge_ref(ref)
    if name:
        parsed = structs.replace(parsed, path=parsed.path.strip("/").removeprefix(name).strip("/"))
    return PassageReader(repository, configured_roots(config), name).passage(parsed, commit)


def _lines_below(path: str, text: str, heading: str) -> Lines:
    """Return the lines of a heading or a definition and of all that stands below it.

    Raises:
        RefError: the file has no such heading; the message lists those there are.
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
    """Return the last line of the sections in a row whose titles begin so."""
    below = takewhile(lambda section: section[0][: len(titles)] == titles, sections)
    return max(last for _, (_, last) in below)


def _slugs(title: str) -> set[str]:
    """Return the names of a title: a definition has one with and one without its keyword."""
    keyword, _, name = title.rpartition(" ")
    return (
        {heading_slug(title), heading_slug(name)} if keyword in DEFINING else {heading_slug(title)}
    )


def _part(path: str, text: str, span: Span | None) -> tuple[str, tuple[int, int], Span | None]:
    """Return the text that a span names, its lines, and the span cut to the text."""
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
    """Return the heading or definition that the lines begin in, or the file's name."""
    for section in chunk(path, text):
        if section.lines[1] >= lines[0]:
            return section.title
    return path.rpartition("/")[2]
