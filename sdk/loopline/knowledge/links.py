"""Broken links and `ks:` refs in documents."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from urllib.parse import unquote

from loopline.errors import RefError
from loopline.knowledge.tree import Tree
from loopline.refs import KnowledgeRef, parse

_MARKDOWN = (".md", ".markdown", ".mdx")
_DOCUMENTS = (*_MARKDOWN, ".rst", ".txt")
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


def broken_links(
    path: str,
    inside: str,
    text: str,
    tree: Tree,
    *,
    with_paths: bool = False,
    name: str = "",
) -> Iterator[str]:
    """Yield a warning with file and line for each link or ref of a document that leads nowhere.

    `path` is the document's path in the space, `inside` its path in the repository. Links are not
    checked in fenced and inline code, refs not in fenced code. A link from the top of a web site is
    not checked either: its target is not known here. `with_paths` checks paths in backticks too, if they begin
    with a top folder: `docs/tea.md` is one, `text/html` none. `name` is that of the tree's repository, if the space
    has several; refs to the others are not checked.
    """
    ending = posixpath.splitext(inside)[1].lower()
    marks = ("](", "]:", "ks:", *("`" if with_paths else ""))
    if ending not in _DOCUMENTS or not any(mark in text for mark in marks):
        return
    for number, line in _outside_fences(text):
        for why in _problems(line, inside, tree, ending in _MARKDOWN, with_paths, name):
            yield f"{path}:{number}: {why}"


def _problems(
    line: str, inside: str, tree: Tree, markdown: bool, with_paths: bool, name: str
) -> Iterator[str]:
    for ref in _REF.findall(line):
        if why := _broken_ref(ref.rstrip(".,;:!?"), tree, name):
            yield why
    for quoted in _QUOTED_PATH.findall(line) if with_paths else ():
        if not _path_exists(quoted, inside, tree):
            yield f"there is no `{quoted}`"
    for target in _targets(line) if markdown else ():
        if not _target_exists(target, inside, tree):
            yield f"the link to {target!r} leads nowhere"


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


def _target_exists(target: str, inside: str, tree: Tree) -> bool:
    if _ELSEWHERE.match(target):
        return True
    bare = unquote(target.partition("#")[0].partition("?")[0])
    folder = posixpath.dirname(inside)
    path = posixpath.normpath(posixpath.join(folder, bare))
    if path.startswith(".."):
        return True
    path = "" if path == "." else path
    return any(tree.exists(f"{path}{ending}") for ending in _ENDINGS)


def _path_exists(quoted: str, inside: str, tree: Tree) -> bool:
    """Return whether a path in backticks names something, from the top or from the document's folder."""
    path = quoted.rstrip("/")
    if not tree.has_top_folder(path.partition("/")[0]):
        return True
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(inside), path))
    return (
        tree.exists(path)
        or tree.exists(beside)
        or tree.find(path) is not None
        or path in tree.folders
    )


def _broken_ref(text: str, tree: Tree, name: str) -> str:
    """Return why a ref names nothing, or an empty string. A ref to another commit is not checked."""
    try:
        ref = parse(text)
    except RefError as error:
        return str(error)
    if not isinstance(ref, KnowledgeRef) or ref.commit is not None:
        return ""
    path = ref.path.strip("/")
    if name:
        first, _, path = path.partition("/")
        if first != name:
            return ""
    if tree.find(path) is not None or path in tree.folders:
        return ""
    near = tree.nearest(path)
    return f"{text} names nothing" + (f"; near it: {', '.join(near[:3])}" if near else "")
