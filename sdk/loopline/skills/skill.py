"""A skill: a SKILL.md with a front matter, its companion files, and the other files of its folder."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import cast

from loopline.errors import BundleError
from loopline.models import Json, YamlDocument, YamlError, split_front_matter
from loopline.names import nearest_hint
from loopline.refs import SkillRef
from loopline.skills import companions
from loopline.timeline import Source, citations

REACT = "solver.react.decision.v2"
"""The name of the loop as a consumer of skills; `react` is its short form."""

REACT_SHORT = "react"

HIDDEN = "internal"
"""Skills in this namespace are hidden if no pattern enables them."""

_KEYS = ("enabled", "disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSelection:
    """Patterns for skills: an id, `<namespace>.<id>`, or a glob for one of these, such as `public.*`."""

    enabled: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()

    def takes(self, namespace: str, id: str) -> bool:
        """Return whether `enabled` has a match; if it is None, whether the skill is neither internal nor disabled."""
        if self.enabled is not None:
            return any(_matches(pattern, namespace, id) for pattern in self.enabled)
        hidden = namespace == HIDDEN
        return not hidden and not any(_matches(p, namespace, id) for p in self.disabled)

    def unmatched(self, names: Iterable[tuple[str, str]]) -> list[str]:
        """Return the patterns that do not match any skill; `names` has the namespace and id of each skill."""
        skills = list(names)
        return [
            pattern
            for pattern in (*(self.enabled or ()), *self.disabled)
            if not any(_matches(pattern, namespace, id) for namespace, id in skills)
        ]


def skill_selections(config: object) -> dict[str, SkillSelection]:
    """Decode an AGENTS_CONFIG to selections by consumer (loop); the name `react` is replaced by its full form.

    Raises:
        BundleError: the value is malformed; the message shows the expected form.
    """
    if not isinstance(config, Mapping):
        raise BundleError(f'write {{"{REACT}": {{"enabled": […]}}}}, not {config!r}')
    by_consumer: dict[str, SkillSelection] = {}
    for consumer, patterns in cast("Mapping[object, object]", config).items():
        name = REACT if consumer == REACT_SHORT else consumer
        if not isinstance(name, str) or name in by_consumer:
            raise BundleError(f"{consumer!r} is not a name of a consumer, or is repeated")
        by_consumer[name] = _selection(name, patterns)
    return by_consumer


def _selection(consumer: str, patterns: object) -> SkillSelection:
    """Decode the patterns of one consumer; an empty mapping selects all skills that are not internal.

    Raises:
        BundleError: it is not a mapping, has an unknown key or both keys, or a value is not a list of texts.
    """
    if not isinstance(patterns, Mapping):
        raise BundleError(
            f'{consumer!r} must have {{"enabled": […]}} or {{"disabled": […]}} or {{}}'
        )
    settings = cast("Mapping[object, object]", patterns)
    for key in settings:
        if key not in _KEYS:
            hint = nearest_hint(str(key), _KEYS)
            raise BundleError(f"{consumer!r} has the unknown key {key!r}, {hint}")
    if len(settings) > 1:
        raise BundleError(f"{consumer!r} has both enabled and disabled: keep one of them")
    texts = {str(key): _texts(consumer, value) for key, value in settings.items()}
    return SkillSelection(**texts)


def _texts(consumer: str, value: object) -> tuple[str, ...]:
    items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else [None]
    texts = tuple(item for item in items if isinstance(item, str))
    if len(texts) != len(items):
        raise BundleError(f"{consumer!r} must list patterns as texts, not {value!r}")
    return texts


def _matches(pattern: str, namespace: str, id: str) -> bool:
    return fnmatchcase(f"{namespace}.{id}", pattern) or fnmatchcase(id, pattern)


SKILL_FILE = "SKILL.md"
DEFAULT_NAMESPACE = "custom"
KEYS = (
    *("name", "id", "description", "version", "namespace", "category", "tags", "when_to_use"),
    *("author", "created", "built_in", "include_for", "import", "imports"),
    *("license", "compatibility", "metadata", "allowed-tools"),
)
DIGEST = 12
SKILL_BYTES = 256 * 1024
NAME_CHARACTERS = 64
DESCRIPTION_CHARACTERS = 1_024
COMPATIBILITY_CHARACTERS = 500

COMPANIONS = (companions.SOURCES_FILE, companions.TOOLS_FILE, companions.COMPACT_FILE)
_NAMESPACE = re.compile(r"[\w-]+")
_ID = re.compile(r"[\w-]([\w.-]*[\w-])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill.

    `imports` are the names of directly imported skills, `imported` all skills that it imports, directly or not. `body` is
    the text of the SKILL.md, the tools, and the names of the files; a reader gets that of `with_imports`. Citations in it
    are stored as plain text, `[ [S:1]]`, because the numbers of `sources` differ from those of a conversation. `compact`
    is a short form of the body, or empty. If `include_for` is not empty, only these consumers see the skill. `warnings`
    describe fields and files without effect.
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
    imported: tuple[Skill, ...] = ()
    include_for: tuple[str, ...] = ()
    sources: Mapping[int, Source] = field(default_factory=dict[int, Source])
    tools: tuple[companions.SkillTool, ...] = ()
    compact: str = ""
    files: tuple[companions.SkillFile, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def full_id(self) -> str:
        """The name `<namespace>.<id>`."""
        return f"{self.namespace}.{self.id}"

    @property
    def ref(self) -> str:
        """The ref with the digest of the skill."""
        return str(SkillRef(namespace=self.namespace, skill=self.id, digest=self.digest))

    def with_imports(self) -> Skill:
        """Return the skill with the bodies of all imported skills appended, and their sources renumbered.

        Call this when the text is read: the bodies of all skills, each with its imports, may take much memory.
        """
        sources = dict(self.sources)
        bodies = [self.body]
        short_bodies = [self.compact or self.body]
        # A skill outside of a bundle may import one of the bundle, which has imports of its own.
        for imported in (skill.with_imports() for skill in self.imported):
            newest = max(sources, default=0)
            numbers = {number: newest + at for at, number in enumerate(imported.sources, 1)}
            sources |= {numbers[number]: source for number, source in imported.sources.items()}
            heading = f"# Imported: {imported.full_id}\n\n"
            bodies.append(heading + citations.renumber(imported.body, numbers))
            short = citations.renumber(imported.compact or imported.body, numbers)
            short_bodies.append(heading + short)
        is_shorter = any(skill.compact for skill in (self, *self.imported))
        return replace(
            self,
            body="\n\n".join(bodies),
            compact="\n\n".join(short_bodies) if is_shorter else "",
            sources=sources,
            imported=(),
        )

    def __str__(self) -> str:
        when = f" (when: {self.when_to_use})" if self.when_to_use else ""
        return f"{self.ref} — {self.name}: {self.description}{when}"


def read_skill(path: Path, namespace: str) -> Skill:
    """Read a skill from the SKILL.md at `path` and from the companion files in its folder.

    The name of the folder is the id. If `namespace` is `DEFAULT_NAMESPACE`, the front matter may name another namespace.
    Imports are not resolved, so `imported` is empty.

    Raises:
        BundleError: a file cannot be read, is too large or is malformed, or the id or namespace in the front matter
            differs from `path` or `namespace`; the message names file and line.
    """
    stored = _bytes_of(path, SKILL_BYTES)
    try:
        front, body = split_front_matter(_decode(path, stored))
    except YamlError as error:
        raise BundleError(f"{path}:{error.line}: {error.problem}") from error
    fields = _Fields(path, front)
    fields.check_keys()
    beside = {
        name: _bytes_of(path.parent / name, companions.COMPANION_BYTES)
        for name in COMPANIONS
        if (path.parent / name).is_file()
    }
    files, left_out = companions.folder_files(path.parent, (SKILL_FILE, *COMPANIONS))
    sources, unused = companions.read_sources(
        path.parent / companions.SOURCES_FILE, beside.get(companions.SOURCES_FILE, b"sources: []")
    )
    tools = companions.read_tools(
        path.parent / companions.TOOLS_FILE, beside.get(companions.TOOLS_FILE, b"tools: []")
    )
    first_line = len(stored.splitlines()) - len(body.splitlines()) + 1
    _check_citations(path, first_line, body, sources)
    compact = _decode(
        path.parent / companions.COMPACT_FILE, beside.get(companions.COMPACT_FILE, b"")
    ).strip()
    skill = Skill(
        namespace=namespace,
        id=unicodedata.normalize("NFKC", path.parent.name),
        name=fields.line_of_text("name", path.parent.name),
        description=fields.line_of_text("description", "", DESCRIPTION_CHARACTERS),
        when_to_use=fields.line_of_text("when_to_use", ""),
        body=citations.unbind(body.strip()),
        digest=_digest(stored, beside, files),
        path=path,
        imports=fields.imports,
        imports_line=fields.document.line(fields.imports_key),
        include_for=fields.include_for,
        sources=sources,
        tools=tools,
        compact=citations.unbind(compact),
        files=tuple(files),
        warnings=(
            *fields.warnings(),
            *unused,
            *left_out,
            *_warn_of_citations(path, body, sources),
        ),
    )
    named = _check_names(skill, fields)
    return replace(named, body="\n\n".join([named.body, *_appendix(named)]))


def read_skills(places: Iterable[tuple[Path, str]]) -> list[Skill]:
    """Read the skills in these files, each given with its namespace.

    Raises:
        BundleError: skills are malformed; the error has a problem for each of them.
    """
    skills = list[Skill]()
    problems = list[str]()
    for path, namespace in places:
        try:
            skills.append(read_skill(path, namespace))
        except BundleError as error:
            problems += error.problems
    if problems:
        raise BundleError(*problems)
    return skills


def _bytes_of(path: Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes.

    Raises:
        BundleError: the file cannot be read, or is larger.
    """
    try:
        size = path.stat().st_size
        if size <= limit:
            return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}:1: it cannot be read: {error.strerror}") from error
    raise BundleError(
        f"{path}:1: it has {size:,} bytes, and may have {limit:,}: move parts into files of its folder"
    )


def _decode(path: Path, stored: bytes) -> str:
    return companions.decode_text(path, stored).replace("\r\n", "\n")


def _digest(
    stored: bytes, beside: Mapping[str, bytes], files: Sequence[companions.SkillFile]
) -> str:
    """Return the digest of the SKILL.md, the companion files, and the names and sizes of other files, if any."""
    if not beside and not files:
        return sha256(stored).hexdigest()[:DIGEST]
    parts = [sha256(content).hexdigest() for content in (stored, *beside.values())]
    return sha256("\n".join([*parts, *map(str, files)]).encode()).hexdigest()[:DIGEST]


def _check_citations(path: Path, first_line: int, body: str, sources: Mapping[int, Source]) -> None:
    """Raise a BundleError if the sources lack the number of a citation; without any sources nothing is checked."""
    if not sources:
        return
    for token in citations.find(body, newest=max(sources)):
        unknown = [number for number in token.sids if number not in sources]
        if unknown:
            line = first_line + body.count("\n", 0, token.start)
            raise BundleError(
                f"{path}:{line}: {companions.SOURCES_FILE} has no source {unknown[0]}"
            )


def _warn_of_citations(path: Path, body: str, sources: Mapping[int, Source]) -> Iterator[str]:
    """Yield a warning if the text has citations, but the skill has no sources."""
    if not sources and citations.unbind(body) != body:
        yield f"{path}: [[S:…]] stays plain text: list the sources of the skill in {companions.SOURCES_FILE}"


def _appendix(skill: Skill) -> Iterator[str]:
    """Yield the paragraphs after the text of a skill: the list of its tools and the list of its files, if any."""
    if skill.tools:
        yield "\n".join(["Tools for this skill:", *(f"- {tool}" for tool in skill.tools)])
    if skill.files:
        unlisted = len(skill.files) - companions.LISTED
        lines = [
            f"Files of this skill, which react.read reads as sk:{skill.full_id}/<path>; nothing runs them:",
            *(f"- {file}" for file in skill.files[: companions.LISTED]),
            *([f"and {unlisted} more"] if unlisted > 0 else []),
        ]
        yield "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Fields:
    """The front matter of a skill; errors name file and line."""

    path: Path
    document: YamlDocument

    @property
    def values(self) -> dict[str, Json]:
        value = self.document.value
        if not isinstance(value, dict):
            raise BundleError(f"{self.path}:2: the front matter must be lines like `name: …`")
        return value

    def line_of_text(self, key: str, default: str, limit: int = SKILL_BYTES) -> str:
        """Return a text on one line; a number or a date is converted. Without a `default` the text must exist.

        A list for `when_to_use` is joined with `; `.

        Raises:
            BundleError: the text is missing or empty, is a list or an object, or has more than `limit` characters.
        """
        value = self.values.get(key)
        if value is None and (default or key == "when_to_use"):
            return default
        if isinstance(value, list) and key == "when_to_use":
            return "; ".join(" ".join(str(item).split()) for item in value)
        text = "" if value is None or isinstance(value, dict | list) else str(value)
        if not text.strip():
            raise self.wrong(key, f"{key!r} must be a text")
        if len(text.strip()) > limit:
            raise self.wrong(key, f"{key!r} has {len(text):,} characters, and may have {limit:,}")
        return " ".join(text.split())

    @property
    def imports_key(self) -> str:
        return "import" if "import" in self.values else "imports"

    @property
    def imports(self) -> tuple[str, ...]:
        """The names of the imported skills, in a list or as one text."""
        return self._names(self.imports_key, "list the names of skills, such as [public.tea]")

    @property
    def include_for(self) -> tuple[str, ...]:
        """The consumers that see the skill, in a list or as one text; `react` gets its full name."""
        names = self._names("include_for", f"list consumers, such as [{REACT_SHORT}]")
        return tuple(REACT if name == REACT_SHORT else name for name in names)

    def _names(self, key: str, hint: str) -> tuple[str, ...]:
        """Return the names under a key, a list or one text, without duplicates; empty if the key is missing.

        Raises:
            BundleError: a name is empty or not a text; the message is `hint`.
        """
        value = self.values.get(key) or []
        items = value if isinstance(value, list) else [value]
        names = [item.strip() for item in items if isinstance(item, str)]
        if len(names) != len(items) or not all(names):
            raise self.wrong(key, hint)
        return tuple(dict.fromkeys(names))

    def check_keys(self) -> None:
        """Raise a BundleError if a key is unknown, or `compatibility` is not a text of at most 500 characters."""
        for key in self.values:
            if key not in KEYS:
                problem = f"{key!r} is not a key of a skill, {nearest_hint(key, KEYS)}"
                raise self.wrong(key, f"{problem}; put it below metadata")
        if "compatibility" in self.values:
            self.line_of_text("compatibility", "", COMPATIBILITY_CHARACTERS)

    def wrong(self, key: str, problem: str) -> BundleError:
        return BundleError(f"{self.path}:{self.document.line(key)}: {problem}")

    def warnings(self) -> tuple[str, ...]:
        """Return a warning with file and line for each key that has an effect only in other systems."""
        return tuple(
            str(self.wrong(key, f"{key!r} has no effect: {_INSTEAD[key]}"))
            for key in self.values
            if key in _INSTEAD
        )


# Keys that approve or select something in other systems, but not in Loopline.
_INSTEAD = {
    "built_in": "select skills for an agent in `AGENTS_CONFIG`",
    "allowed-tools": "a skill approves of no call, guards do; `build_react(tools=…)` says which tools are offered",
}


def _check_names(skill: Skill, fields: _Fields) -> Skill:
    """Return the skill with the namespace in its front matter. Names must be valid, and agree with the path.

    Raises:
        BundleError: the id or the namespace differs from the path or has invalid characters, or the id is too long.
    """
    written = {
        key: fields.line_of_text(key, key) for key in ("id", "namespace") if key in fields.values
    }
    names = {"id": skill.id, "namespace": skill.namespace} | written
    if unicodedata.normalize("NFKC", names["id"]) != skill.id:
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
        raise fields.wrong(
            "id",
            f"{skill.full_id!r} is not a valid name: use letters and digits, with _ or - between",
        )
    if len(skill.id) > NAME_CHARACTERS:
        raise fields.wrong(
            "id", f"the name has {len(skill.id)} characters, and may have {NAME_CHARACTERS}"
        )
    return skill
