"""Broken links and `ks:` refs in documents."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterable, Iterator
from typing import Literal, Protocol
from urllib.parse import unquote

from msgspec import Struct

from loopline.errors import RefError
from loopline.knowledge.tree import Tree
from loopline.refs import KnowledgeRef, parse

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
_FENCE = re.compile(r"^ {0,3}(```+|~~~+)(.*)")
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
_ENDINGS = ("", ".md", ".mdx", ".markdown", ".rst", "/index.md", "/README.md")


class DocumentLink(Struct, frozen=True, array_like=True):
    """A link of a document, by its line: what is written there, and the path that it names.

    A `link` and a `path` in backticks name one in the repository, `ref` one in the space, after the name of the
    repository if the space has several, and `label` a place that some document has given this name. `heading` is what
    follows the `#`. Of what is no ref, `wrong` says why.
    """

    line: int
    kind: LinkKind
    written: str
    path: str = ""
    heading: str = ""
    wrong: str = ""


class LinkTargets(Protocol):
    """What the links of a document may name besides files and folders."""

    def broken_ref(self, ref: KnowledgeRef) -> str:
        """Return why a ref to another repository, or to lines or a heading of a file, names nothing; else nothing."""
        ...

    def broken_heading(self, path: str, heading: str) -> str:
        """Return why a document of the repository has no such heading; nothing if it has one, or is none."""
        ...


def is_document(path: str) -> bool:
    """Return whether the links of a file are checked, by its name."""
    return posixpath.splitext(path)[1].lower() in _DOCUMENTS


def document_links(inside: str, text: str) -> tuple[DocumentLink, ...]:
    """Return the links, `ks:` refs and paths in backticks of a document, in order of lines; none of other files.

    `inside` is its path in the repository. Links are left out in fenced and inline code, refs in fenced code. So is
    a link from the top of a web site: its target is not known here.
    """
    if not is_document(inside) or not any(mark in text for mark in _MARKS):
        return ()
    ending = posixpath.splitext(inside)[1].lower()
    return tuple(
        link
        for number, line in _outside_fences(text)
        for link in _links_of(line, number, inside, ending in _MARKDOWN)
    )


def document_labels(inside: str, text: str) -> tuple[str, ...]:
    """Return the names that a document gives to its places: `(name)=` in Markdown, `.. _name:` elsewhere."""
    if not is_document(inside) or not any(mark in text for mark in _LABEL_MARKS):
        return ()
    if posixpath.splitext(inside)[1].lower() not in _MARKDOWN:
        return tuple(_folded(match[1] or match[2]) for match in _RST_LABEL.finditer(text))
    if not _LABEL.search(text):
        return ()
    matches = (_LABEL.match(line) for _, line in _outside_fences(text))
    return tuple(_folded(match[1]) for match in matches if match)


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
    """Yield a warning with file and line for each link or ref of a document that leads nowhere.

    `path` is the document's path in the space, `inside` its path in the repository; `name` is that of the repository,
    if the space has several. `labels` are those of all its documents. Without `targets` neither headings are checked, nor refs to other repositories, nor paths
    in backticks. Those are checked if they begin with a top folder: `docs/tea.md` is one, `text/html` none.
    """
    for link in links:
        why = _problem(link, inside, tree, name, targets)
        if why and not _names_label(link, labels):
            yield f"{path}:{link.line}: {why}"


def _names_label(link: DocumentLink, labels: Container[str]) -> bool:
    """Return whether a link names a label, as `label` or as `#label`."""
    return (
        link.kind in ("link", "label")
        and _folded(unquote(link.written).removeprefix("#")) in labels
    )


def _folded(label: str) -> str:
    """Return a label as it is compared: the case and the width of spaces do not count."""
    return " ".join(label.split()).casefold()


def _problem(
    link: DocumentLink, inside: str, tree: Tree, name: str, targets: LinkTargets | None
) -> str:
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
        # A colon stands behind the name of another project, or of a document whose headings are labels.
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


def _outside_fences(text: str) -> Iterator[tuple[int, str]]:
    fence = ""
    for number, line in enumerate(text.split("\n"), start=1):
        match = _FENCE.match(line)
        if match is None:
            if not fence:
                yield number, line
        elif not fence:
            fence = match[1]
        elif match[1].startswith(fence) and not match[2].strip():
            fence = ""


def _targets(line: str) -> Iterator[str]:
    if "](" not in line and "]:" not in line:
        return
    prose = _CODE.sub("", line)
    for match in _LINK.finditer(prose):
        yield match[1] or match[2] or ""
    if definition := _DEFINITION.match(prose):
        yield definition[1]


def _broken_target(link: DocumentLink, tree: Tree, targets: LinkTargets | None) -> str:
    for ending in _ENDINGS:
        if tree.exists(f"{link.path}{ending}"):
            if targets is None or not link.heading:
                return ""
            why = targets.broken_heading(f"{link.path}{ending}", link.heading)
            return f"the link to {link.written!r} leads nowhere: {why}" if why else ""
    return f"the link to {link.written!r} leads nowhere"


def _broken_path(link: DocumentLink, inside: str, tree: Tree) -> str:
    """Return why a path in backticks names nothing, neither from the top nor from the document's folder."""
    path = link.written.rstrip("/")
    if not tree.has_top_folder(path.partition("/")[0]):
        return ""
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(inside), path))
    exists = (
        tree.exists(path)
        or tree.exists(beside)
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
    """Return why a ref names nothing, or an empty string. A ref to another commit is not checked."""
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
    near = tree.nearest(path)
    return f"{text} names nothing" + (f"; near it: {', '.join(near[:3])}" if near else "")
