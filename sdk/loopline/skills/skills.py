"""Skills: SKILL.md files with a front matter, loaded from a folder and selected for an agent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import cast

from loopline.errors import BundleError, RefError
from loopline.models import Json
from loopline.refs import SkillRef
from loopline.skills.yaml_document import YamlDocument, YamlError, read_yaml

FILE = "SKILL.md"
DEFAULT_NAMESPACE = "custom"
KEYS = (
    *("name", "id", "description", "version", "namespace", "category", "tags", "when_to_use"),
    *("author", "created", "built_in", "include_for", "import", "imports"),
    *("license", "compatibility", "metadata", "allowed-tools"),
)
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
    """A skill. `warnings` name what has no effect in its files. `imports` are the names of the skills read with it.

    A citation token in its text would cite a source of the conversation that shows it, so `body` has it as plain text,
    `[ [S:1]]`.
    """

    namespace: str
    id: str
    name: str
    description: str
    when_to_use: str
    body: str
    digest: str
    path: Path
    imports: tuple[str, ...] = ()
    imports_line: int = 1
    warnings: tuple[str, ...] = ()

    @property
    def full_id(self) -> str:
        """Return `<namespace>.<id>`."""
        return f"{self.namespace}.{self.id}"

    @property
    def ref(self) -> str:
        """Return the pinned ref that reads this text again."""
        return str(SkillRef(namespace=self.namespace, skill=self.id, digest=self.digest))

    def __str__(self) -> str:
        when = f" (when: {self.when_to_use})" if self.when_to_use else ""
        return f"{self.ref} — {self.name}: {self.description}{when}"


def read_skill(path: Path, namespace: str) -> Skill:
    """Return the skill in a SKILL.md; its folder is the id.

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
        imports=fields.imports,
        imports_line=fields.document.line(fields.imports_key),
        warnings=(*fields.warnings(), *_unread(path, body)),
    )
    return _named(skill, fields)


def _split(path: Path, text: str) -> tuple[YamlDocument, str]:
    match = _FRONT.match(text)
    if match is None:
        problem = "is never closed: end it with a line ---" if _FENCE.match(text) else "is missing"
        raise BundleError(f"{path}:1: the front matter between two lines --- {problem}")
    try:
        front = read_yaml(match[1], first_line=2)
    except YamlError as error:
        raise BundleError(f"{path}:{error.line}: the front matter: {error.problem}") from error
    return front, text[match.end() :]


@dataclass(frozen=True, slots=True)
class _Fields:
    """The front matter, with errors that name file and line."""

    path: Path
    document: YamlDocument

    @property
    def values(self) -> dict[str, Json]:
        value = self.document.value
        if not isinstance(value, dict):
            raise BundleError(f"{self.path}:2: the front matter must be lines like `name: …`")
        return value

    def line_of_text(self, key: str, default: str) -> str:
        """Return a text on one line; a number or a date is taken as written."""
        value = self.values.get(key)
        if value is None and (default or key == "when_to_use"):
            return default
        if isinstance(value, list) and key == "when_to_use":
            return "; ".join(" ".join(str(item).split()) for item in value)
        text = "" if value is None or isinstance(value, dict | list) else str(value)
        if not text.strip():
            raise self.wrong(key, f"{key!r} must be a text")
        return " ".join(text.split())

    @property
    def imports_key(self) -> str:
        """The key under which the file lists its imports."""
        return "import" if "import" in self.values else "imports"

    @property
    def imports(self) -> tuple[str, ...]:
        """The names of the imported skills, in a list or as one text."""
        value = self.values.get(self.imports_key) or []
        items = [value] if isinstance(value, str) else value
        names = (
            [item.strip() for item in items if isinstance(item, str)]
            if isinstance(items, list)
            else []
        )
        if not isinstance(items, list) or len(names) != len(items) or not all(names):
            raise self.wrong(self.imports_key, "list the names of skills, such as [public.tea]")
        return tuple(dict.fromkeys(names))

    def wrong(self, key: str, problem: str) -> BundleError:
        return BundleError(f"{self.path}:{self.document.line(key)}: {problem}")

    def warnings(self) -> tuple[str, ...]:
        warnings = list[str]()
        for key in self.values:
            if key not in KEYS:
                near = get_close_matches(key, KEYS, 1, 0.0)[0]
                problem = f"{key!r} is no key of a skill, the nearest is {near!r}"
            elif key in _INSTEAD:
                problem = f"{key!r} has no effect: {_INSTEAD[key]}"
            else:
                continue
            warnings.append(str(self.wrong(key, problem)))
        return tuple(warnings)


_SELECT = "select skills for an agent in `AGENTS_CONFIG`"
# Keys of other systems' skills, which are ignored here.
_INSTEAD = {
    "built_in": _SELECT,
    "include_for": _SELECT,
    "allowed-tools": "a loop offers the tools that `build_react(tools=…)` allows",
}


def _unread(path: Path, body: str) -> Iterator[str]:
    """Yield a warning for everything beside the front matter that has no effect."""
    for name in UNREAD_FILES:
        if (path.parent / name).is_file():
            yield f"{path.parent / name}: this file is not read: move its content into {FILE}"
    if _TOKEN.search(body):
        yield f"{path}: [[S:…]] cites a source of a conversation and stays plain text in a skill"


def _named(skill: Skill, fields: _Fields) -> Skill:
    """Return the skill with the names in its front matter, which must agree with its path."""
    written = {
        key: fields.line_of_text(key, key) for key in ("id", "namespace") if key in fields.values
    }
    names = {"id": skill.id, "namespace": skill.namespace} | written
    if names["id"] != skill.id:
        problem = f"the id is {names['id']!r}, but the folder is called {skill.id!r}"
        raise fields.wrong("id", f"{problem}: give both the same name")
    if skill.namespace == DEFAULT_NAMESPACE:
        skill = replace(skill, namespace=names["namespace"])
    if names["namespace"] != skill.namespace:
        problem = (
            f"the namespace is {names['namespace']!r}, but the folder says {skill.namespace!r}"
        )
        raise fields.wrong("namespace", f"{problem}: give both the same name")
    if not _NAMESPACE.fullmatch(skill.namespace) or not _ID.fullmatch(skill.id):
        raise fields.wrong("id", f"{skill.full_id!r} is no valid name: use A-Z a-z 0-9 _ -")
    return skill


REACT = "solver.react.decision.v2"
"""The loop as a consumer of skills; `react` is short for it."""

HIDDEN = "internal"
"""The namespace whose skills are hidden unless a pattern enables them."""

_SHORT = "react"
_KEYS = ("enabled", "disabled")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSelection:
    """Patterns over skills: an id, `<namespace>.<id>`, or a glob over one of them such as `public.*`."""

    enabled: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()

    def takes(self, namespace: str, id: str) -> bool:
        """Return whether the agent sees a skill."""
        if self.enabled is not None:
            return any(_matches(pattern, namespace, id) for pattern in self.enabled)
        hidden = namespace == HIDDEN
        return not hidden and not any(_matches(p, namespace, id) for p in self.disabled)

    def matches(self, pattern: str, namespace: str, id: str) -> bool:
        """Return whether the pattern names a skill."""
        return _matches(pattern, namespace, id)

    def unmatched(self, names: Iterable[tuple[str, str]]) -> list[str]:
        """Return the patterns without wildcards that match none of these skills."""
        skills = list(names)
        return [
            pattern
            for pattern in (*(self.enabled or ()), *self.disabled)
            if not _GLOB.search(pattern)
            and not any(_matches(pattern, namespace, id) for namespace, id in skills)
        ]


def skill_selections(config: object) -> dict[str, SkillSelection]:
    """Return what an AGENTS_CONFIG selects, by consumer; `react` gets its full name.

    Raises:
        BundleError: it has another shape; the message says which one to write.
    """
    if not isinstance(config, Mapping):
        raise BundleError(f'write {{"{REACT}": {{"enabled": […]}}}}, not {config!r}')
    by_consumer = dict[str, SkillSelection]()
    for consumer, patterns in cast("Mapping[object, object]", config).items():
        name = REACT if consumer == _SHORT else consumer
        if not isinstance(name, str) or name in by_consumer:
            raise BundleError(f"{consumer!r} is no name of a consumer, or stands there twice")
        by_consumer[name] = _selection(name, patterns)
    return by_consumer


def _selection(consumer: str, patterns: object) -> SkillSelection:
    if not isinstance(patterns, Mapping):
        raise BundleError(
            f'{consumer!r} must have {{"enabled": […]}} or {{"disabled": […]}} or {{}}'
        )
    settings = cast("Mapping[object, object]", patterns)
    for key in settings:
        if key not in _KEYS:
            near = get_close_matches(str(key), _KEYS, 1, 0.0)[0]
            raise BundleError(f"{consumer!r} has the unknown key {key!r}, nearest is {near!r}")
    if len(settings) > 1:
        raise BundleError(f"{consumer!r} has both enabled and disabled: keep one of them")
    texts = {str(key): _texts(consumer, value) for key, value in settings.items()}
    return SkillSelection(**texts)


def _texts(consumer: str, value: object) -> tuple[str, ...]:
    items = cast("Iterable[object]", value) if isinstance(value, list | tuple) else [None]
    texts = [item for item in items if isinstance(item, str)]
    if not isinstance(value, list | tuple) or len(texts) != len(cast("list[object]", value)):
        raise BundleError(f"{consumer!r} must list patterns as texts, not {value!r}")
    return tuple(texts)


def _matches(pattern: str, namespace: str, id: str) -> bool:
    return fnmatchcase(f"{namespace}.{id}", pattern) or fnmatchcase(id, pattern)


@dataclass(frozen=True, slots=True)
class Skills:
    """Skills in the order of their names. `warnings` name what has no effect."""

    skills: tuple[Skill, ...] = ()
    warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.skills)

    def __len__(self) -> int:
        return len(self.skills)

    @staticmethod
    def load(root: Path) -> Skills:
        """Return the skills at `<root>/<namespace>/<id>/SKILL.md`, and at `<root>/<id>/SKILL.md` as `custom`.

        Raises:
            BundleError: the folder is missing, a file is malformed, or two skills have the same name.
        """
        if not root.is_dir():
            raise BundleError(f"no folder of skills at {root}: create it, or name another root")
        own = [read_skill(path, DEFAULT_NAMESPACE) for path in sorted(root.glob(f"*/{FILE}"))]
        spaced = [
            read_skill(path, path.parent.parent.name) for path in sorted(root.glob(f"*/*/{FILE}"))
        ]
        by_id = dict[str, Skill]()
        for skill in (*own, *spaced):
            existing = by_id.setdefault(skill.full_id, skill)
            if existing is not skill:
                raise BundleError(
                    f"{skill.path}:1: {skill.full_id!r} is also at {existing.path}: rename one of them"
                )
        skills = tuple(skill for _, skill in sorted(by_id.items()))
        written = tuple(warning for skill in skills for warning in skill.warnings)
        return Skills(skills, (*written, *_empty(root)))

    def enabled(self, config: Mapping[str, SkillSelection], consumer: str = REACT) -> Skills:
        """Return the skills that `consumer` sees; without a selection, all but the internal ones."""
        selection = config.get(consumer, SkillSelection())
        selected = (skill for skill in self.skills if selection.takes(skill.namespace, skill.id))
        return Skills(tuple(selected), self.warnings)

    def find(self, namespace: str, id: str) -> Skill:
        """Return the skill of that name.

        Raises:
            RefError: there is none; the message names the nearest.
        """
        for skill in self.skills:
            if (skill.namespace, skill.id) == (namespace, id):
                return skill
        name = f"{namespace}.{id}"
        close = get_close_matches(name, [skill.full_id for skill in self.skills], 3, 0.0)
        hint = f"nearest are {close}" if close else "there are no skills here"
        raise RefError(f"no skill {name}: {hint}")

    def gallery(self) -> str:
        """Return a line for each skill: its ref, its name, its description and when to use it."""
        return "\n".join(map(str, self.skills))


def _empty(root: Path) -> Iterator[str]:
    """Yield a warning for each folder that looks like a skill's and has no SKILL.md."""
    for folder in sorted(root.iterdir()):
        holds = folder.is_dir() and not folder.name.startswith((".", "_"))
        if holds and not [*folder.glob(FILE), *folder.glob(f"*/{FILE}")]:
            yield f"{folder}: no {FILE} here or one folder below"
