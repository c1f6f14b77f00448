"""A skill: how to do something, as a text with a front matter, in a file called SKILL.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

from loopline.errors import BundleError
from loopline.models import Json
from loopline.refs import SkillRef
from loopline.skills.document import Document, DocumentError, read_yaml

FILE = "SKILL.md"
DEFAULT_NAMESPACE = "custom"
KEYS = (
    *("name", "id", "description", "version", "namespace", "category", "tags", "when_to_use"),
    *("author", "created", "built_in", "include_for", "import", "imports"),
)
WITHOUT_EFFECT = ("built_in", "include_for", "import", "imports")
"""Keys of other systems' skills, which are read past here."""
UNREAD_FILES = ("sources.yaml", "compact.md", "tools.yaml")
"""Files of other systems' skills, which are not read here."""
DIGEST = 12

_FENCE = re.compile(r"---[ \t]*\n")
_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_TOKEN = re.compile(r"\[(?=\[[ \t]*[Ss][ \t]*:)")
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]+")
_ID = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9_.-]*[A-Za-z0-9_-])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill as it is now. `warnings` say what of it means nothing.

    A citation token in its text would name a source of the conversation that shows it: in `body` it is
    plain text, `[ [S:1]]`.
    """

    namespace: str
    id: str
    name: str
    description: str
    when_to_use: str
    body: str
    digest: str
    path: Path
    warnings: tuple[str, ...] = ()

    @property
    def full_id(self) -> str:
        """`<namespace>.<id>`."""
        return f"{self.namespace}.{self.id}"

    @property
    def ref(self) -> str:
        """The pinned name by which this text can be read again."""
        return str(SkillRef(namespace=self.namespace, skill=self.id, digest=self.digest))

    def __str__(self) -> str:
        when = f" (when: {self.when_to_use})" if self.when_to_use else ""
        return f"{self.ref} — {self.name}: {self.description}{when}"


def read_skill(path: Path, namespace: str) -> Skill:
    """The skill in a SKILL.md whose place says `namespace` and, by its folder, the id.

    Raises:
        BundleError: the file is malformed; the message names file and line.
    """
    stored = path.read_bytes()
    try:
        text = stored.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = stored.count(b"\n", 0, error.start) + 1
        raise BundleError(f"{path}:{line}: not UTF-8: {error.reason}") from error
    front, body = _split(path, text)
    fields = _Fields(path, front)
    skill = Skill(
        namespace=namespace,
        id=path.parent.name,
        name=fields.line_of_text("name", path.parent.name),
        description=fields.line_of_text("description", ""),
        when_to_use=fields.line_of_text("when_to_use", ""),
        body=_TOKEN.sub("[ ", body.strip()),
        digest=sha256(stored).hexdigest()[:DIGEST],
        path=path,
        warnings=(*fields.warnings(), *_unread(path, body)),
    )
    return _named(skill, fields)


def _split(path: Path, text: str) -> tuple[Document, str]:
    match = _FRONT.match(text)
    if match is None:
        problem = "is never closed: end it with a line ---" if _FENCE.match(text) else "is missing"
        raise BundleError(f"{path}:1: the front matter between two lines --- {problem}")
    try:
        front = read_yaml(match[1], first_line=2)
    except DocumentError as error:
        raise BundleError(f"{path}:{error.line}: the front matter: {error.problem}") from error
    return front, text[match.end() :]


@dataclass(frozen=True, slots=True)
class _Fields:
    """The front matter, and how to complain about it."""

    path: Path
    document: Document

    @property
    def values(self) -> dict[str, Json]:
        value = self.document.value
        if not isinstance(value, dict):
            raise BundleError(f"{self.path}:2: the front matter must be lines like `name: …`")
        return value

    def line_of_text(self, key: str, default: str) -> str:
        """A text on one line; a number or a date is taken as it is written."""
        value = self.values.get(key)
        if value is None and (default or key == "when_to_use"):
            return default
        if isinstance(value, list) and key == "when_to_use":
            return "; ".join(" ".join(str(item).split()) for item in value)
        text = "" if value is None or isinstance(value, dict | list) else str(value)
        if not text.strip():
            raise self.wrong(key, f"{key!r} must be a text")
        return " ".join(text.split())

    def wrong(self, key: str, problem: str) -> BundleError:
        return BundleError(f"{self.path}:{self.document.line(key)}: {problem}")

    def warnings(self) -> tuple[str, ...]:
        found = list[str]()
        for key in self.values:
            if key not in KEYS:
                near = get_close_matches(key, KEYS, 1, 0.0)[0]
                line = self.document.line(key)
                found.append(f"{self.path}:{line}: {key!r} means nothing, nearest is {near!r}")
            elif key in WITHOUT_EFFECT:
                line = self.document.line(key)
                found.append(f"{self.path}:{line}: {key!r} has no effect: {_INSTEAD[key]}")
        return tuple(found)


_NAME_IT = "name the other skill in the text, so that it is read when it is needed"
_SELECT = "select skills for an agent in `AGENTS_CONFIG`"
_INSTEAD = {"built_in": _SELECT, "include_for": _SELECT, "import": _NAME_IT, "imports": _NAME_IT}


def _unread(path: Path, body: str) -> Iterator[str]:
    """Say what beside the front matter has no effect."""
    for name in UNREAD_FILES:
        if (path.parent / name).is_file():
            yield f"{path.parent / name}: it is not read: write what it says into {FILE}"
    if _TOKEN.search(body):
        yield f"{path}: [[S:…]] names a source of a conversation, not of a skill: it is plain text here"


def _named(skill: Skill, fields: _Fields) -> Skill:
    """The skill under the names in its front matter, which may not contradict its place."""
    given = {
        key: fields.line_of_text(key, key) for key in ("id", "namespace") if key in fields.values
    }
    if given.get("id", skill.id) != skill.id:
        problem = f"the id is {given['id']!r}, but the folder is called {skill.id!r}"
        raise fields.wrong("id", f"{problem}: give both the same name")
    if skill.namespace == DEFAULT_NAMESPACE:
        skill = replace(skill, namespace=given.get("namespace", DEFAULT_NAMESPACE))
    if given.get("namespace", skill.namespace) != skill.namespace:
        problem = (
            f"the namespace is {given['namespace']!r}, but the folder says {skill.namespace!r}"
        )
        raise fields.wrong("namespace", f"{problem}: give both the same name")
    if not _NAMESPACE.fullmatch(skill.namespace) or not _ID.fullmatch(skill.id):
        raise fields.wrong("id", f"{skill.full_id!r} is no name for a ref: use A-Z a-z 0-9 _ -")
    return skill
