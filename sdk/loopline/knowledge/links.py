"""Finds links and `ks:` refs in documents, and reports those that are broken."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct

from loopline.errors import RefError
from loopline.knowledge.tree import Tree
from loopline.refs import KnowledgeRef, parse
from loopline.search.sections import fence_after

LinkKind = Literal["ref", "path", "link", "label"]

_MARKDOWN = (".md", ".markdown", ".mdx")
_DOCUMENTS = (*_MARKDOWN, ".rst", ".txt")
_MARKS = ("](", "]:", "ks:", "`")
_LABEL_MARKS = (")=", ".. _")
_LABEL = re.compile(r"^[ \t]*+\(([^\s()=][^()=\n]*+)\)=[ \t\r]*+$", re.MULTILINE)
_RST_LABEL = re.compile(
    r"^[ \t]*+\.\. _(?:`([^`\n]++)`|([^\s:`][^:`\n]*+)):[ \t\r]*+$", re.MULTILINE
)
_LONG_CODE = re.compile(r"(?<!`)(`{2,}+)(?!`).*?(?<!`)\1(?!`)")
_ROLE = re.compile(r"(?<!`)\{(?:ref|numref)\}`(?!`)([^`\n]++)`(?!`)")
_ROLE_TARGET = re.compile(r"<([^<>]++)>\Z")
_BUILT_IN_LABELS = frozenset({"genindex", "modindex", "py-modindex", "search"})
"""Labels that Sphinx defines in every project."""
_CODE = re.compile(r"(?<!`)(`++)[^`]+\1(?!`)")
_LINK = re.compile(
    r"\]\(\s*+(?:<([^<>\n]*+)>|([^()\s]*+(?:\([^()\s]*+\)[^()\s]*+)*+))"
    r"(?:\s++(?:\"[^\"\n]*+\"|'[^'\n]*+'|\([^()\n]*+\)))?\s*+\)"
)
_DEFINITION = re.compile(r"^ {0,3}\[[^\]^][^\]]*\]:\s*<?([^\s>]+)>?\s*(?:[\"'(].*)?\Z")
_REF = re.compile(r"(?<![\w:])ks:[^\s\"'`<>|(){}\[\]…*\\]+")
_QUOTED_PATH = re.compile(
    r"(?<!`)`([\w.@~+-]++(?:/[\w.@~+-]++)++/?)(?:(?:#L?|:)\d[\d:L-]*+)?`(?!`)"
)
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|[/#?{]|\Z")
_LINE_ANCHOR = re.compile(r"L\d+(?:-L?\d+)?|:~:text=.*")
_ENDINGS = ("", ".md", ".mdx", ".markdown", ".rst", "/index.md", "/README.md")


class DocumentLink(Struct, frozen=True, array_like=True):
    """A link in a document.

    `line` counts from 1, and `written` is the text of the link. The kind `link` is a Markdown link: `path` is its target
    in the repository, and `heading` the part after `#`. The kind `path` is a path in backticks. The kind `ref` is a `ks:`
    ref; `wrong` is the error if it cannot be parsed. The kind `label` is the name of a label in any document.
    """

    line: int
    kind: LinkKind
    written: str
    path: str = ""
    heading: str = ""
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class LinkTargets:
    """The targets of links that the tree of one repository cannot check.

    `headings` are the anchors of each document, by path in the repository. `broken_ref` returns the reason if a ref to
    another repository, to lines or to a heading is broken, and otherwise an empty string.
    """

    headings: Mapping[str, frozenset[str]]
    broken_ref: Callable[[KnowledgeRef], str]

    def broken_heading(self, path: str, heading: str) -> str:
        """Return the reason if a document does not have the heading; "" if it does, or the document is unknown."""
        headings = self.headings.get(path)
        if not headings or heading.lower() in headings or _LINE_ANCHOR.fullmatch(heading):
            return ""
        near = get_close_matches(heading.lower(), sorted(headings), n=3, cutoff=0.4)
        return f"no heading #{heading}" + (f"; near it: #{', #'.join(near)}" if near else "")


def is_markdown(path: str) -> bool:
    """Return True if the extension of the file is that of Markdown."""
    return posixpath.splitext(path)[1].lower() in _MARKDOWN


def is_document(path: str) -> bool:
    """Return True if the extension of the file is that of a document: Markdown, reStructuredText or plain text."""
    return posixpath.splitext(path)[1].lower() in _DOCUMENTS


def document_links(inside: str, text: str) -> tuple[DocumentLink, ...]:
    """Return the links, labels, `ks:` refs and paths in backticks of a document by line; empty for other files.

    `inside` is the path of the document in the repository. Links in fenced and inline code are ignored, and refs and
    paths in fenced code. Links with a scheme and links that begin with `/` are ignored, because they lead outside.
    """
    if not is_document(inside) or not any(mark in text for mark in _MARKS):
        return ()
    markdown = is_markdown(inside)
    return tuple(
        link
        for number, line in _lines_outside_fences(text)
        for link in _links_of(line, number, inside, markdown)
    )


def document_labels(inside: str, text: str) -> tuple[str, ...]:
    """Return the labels that a document defines, normalized: `(name)=` in Markdown, `.. _name:` in other documents."""
    if not is_document(inside) or not any(mark in text for mark in _LABEL_MARKS):
        return ()
    if not is_markdown(inside):
        return tuple(_normalize_label(match[1] or match[2]) for match in _RST_LABEL.finditer(text))
    if not _LABEL.search(text):
        return ()
    matches = (_LABEL.match(line) for _, line in _lines_outside_fences(text))
    return tuple(_normalize_label(match[1]) for match in matches if match)


def broken_links(
    path: str,
    inside: str,
    links: Iterable[DocumentLink],
    tree: Tree,
    *,
    name: str = "",
    labels: Container[str] = (),
    targets: LinkTargets | None = None,
) -> Iterator[str]:
    """Yield a warning `path:line: reason` for each broken link or ref of a document.

    Args:
        path: the path of the document in the space.
        inside: its path in the repository.
        links: the result of `document_links`.
        tree: the files of the commit.
        name: the name of the repository in a space of several.
        labels: the normalized labels of all documents of the repository.
        targets: checks headings and refs to other repositories. Without it these are not checked, paths in
            backticks are not checked either, and no similar paths are searched for. Such a path is checked only if it begins with an existing top folder:
            `docs/tea.md`, but not `text/html`.
    """
    for link in links:
        why = _problem(link, inside, tree, name, targets)
        if why and not _names_label(link, labels):
            yield f"{path}:{link.line}: {why}"


def _names_label(link: DocumentLink, labels: Container[str]) -> bool:
    """Return True if a link is an existing label, written as `label` or as `#label`."""
    return (
        link.kind in ("link", "label")
        and _normalize_label(unquote(link.written).removeprefix("#")) in labels
    )


def _normalize_label(label: str) -> str:
    """Return a label in lower case with single spaces, so that labels can be compared."""
    return " ".join(label.split()).casefold()


def _problem(
    link: DocumentLink, inside: str, tree: Tree, name: str, targets: LinkTargets | None
) -> str:
    """Return the reason if a link is broken, otherwise "". A label always counts as broken; the caller looks it up.

    A path in backticks is checked only with `targets`.
    """
    match link.kind:
        case "label":
            return f"no document has the label {link.written!r}"
        case "ref":
            return link.wrong or _broken_ref(link.written, tree, name, targets)
        case "path":
            return "" if targets is None else _broken_path(link, inside, tree)
        case "link":
            return _broken_target(link, tree, targets)


def _links_of(line: str, number: int, inside: str, markdown: bool) -> Iterator[DocumentLink]:
    """Yield the refs and the paths in backticks of a line and, in Markdown, its labels and links to files."""
    for ref in _REF.findall(line) if "ks:" in line else ():
        text = ref.rstrip(".,;:!?")
        yield DocumentLink(number, "ref", text, wrong=_wrong_ref(text))
    for quoted in _QUOTED_PATH.findall(line) if "`" in line else ():
        yield DocumentLink(number, "path", quoted)
    if not markdown:
        return
    for role in _ROLE.findall(_LONG_CODE.sub("", line)) if "ref}`" in line else ():
        explicit = _ROLE_TARGET.search(role)
        label = (explicit[1] if explicit else role).strip()
        # A colon follows the name of another project, or of a document whose headings are labels.
        if ":" not in label and label not in _BUILT_IN_LABELS:
            yield DocumentLink(number, "label", label)
    for target in _targets(line):
        page, mark, heading = target.partition("#")
        if mark and not page:
            yield DocumentLink(number, "link", target, inside, unquote(heading))
        elif not _ELSEWHERE.match(target):
            folder = posixpath.dirname(inside)
            bare = unquote(page.partition("?")[0])
            path = posixpath.normpath(posixpath.join(folder, bare))
            if not path.startswith(".."):
                path = "" if path == "." else path
                yield DocumentLink(number, "link", target, path, unquote(heading))


def _lines_outside_fences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines outside fenced code with their numbers from 1."""
    fence = ""
    for number, line in enumerate(text.split("\n"), start=1):
        before = fence
        fence = fence_after(fence, line)
        if not before and not fence:
            yield number, line


def _targets(line: str) -> Iterator[str]:
    """Yield the targets of the Markdown links and of the link definition in a line, without those in inline code."""
    if "](" not in line and "]:" not in line:
        return
    prose = _CODE.sub("", line)
    for match in _LINK.finditer(prose):
        yield match[1] or match[2] or ""
    if definition := _DEFINITION.match(prose):
        yield definition[1]


def _broken_target(link: DocumentLink, tree: Tree, targets: LinkTargets | None) -> str:
    """Return the reason if a Markdown link is broken, otherwise ""; a document's extension may be left out of it.

    Without `targets` the heading is not checked.
    """
    for ending in _ENDINGS:
        if tree.exists(f"{link.path}{ending}"):
            if targets is None or not link.heading:
                return ""
            why = targets.broken_heading(f"{link.path}{ending}", link.heading)
            return f"the link to {link.written!r} is broken: {why}" if why else ""
    return f"the link to {link.written!r} is broken"


def _broken_path(link: DocumentLink, inside: str, tree: Tree) -> str:
    """Return the reason if a path in backticks does not exist below the top or the document's folder, or ""."""
    path = link.written.rstrip("/")
    if not tree.has_top_folder(path.partition("/")[0]):
        return ""
    relative = posixpath.normpath(posixpath.join(posixpath.dirname(inside), path))
    exists = (
        tree.exists(path)
        or tree.exists(relative)
        or tree.find(path) is not None
        or path in tree.folders
    )
    return "" if exists else f"there is no `{link.written}`"


def _wrong_ref(text: str) -> str:
    try:
        parse(text)
    except RefError as error:
        return str(error)
    return ""


def _broken_ref(text: str, tree: Tree, name: str, targets: LinkTargets | None) -> str:
    """Return the reason if a ref does not exist, otherwise "".

    A ref with a commit is not checked; a ref to another repository or to a part of a file only with `targets`.
    """
    ref = parse(text)
    if not isinstance(ref, KnowledgeRef) or ref.commit is not None:
        return ""
    path = ref.path.strip("/")
    if name:
        first, _, path = path.partition("/")
        if first != name:
            return "" if targets is None else targets.broken_ref(ref)
    if tree.find(path) is not None:
        has_part = ref.heading or ref.span is not None
        return targets.broken_ref(ref) if targets is not None and has_part else ""
    if path in tree.folders:
        return ""
    near = [] if targets is None else tree.nearest(path)
    return f"{text} does not exist" + (f"; near it: {', '.join(near[:3])}" if near else "")
