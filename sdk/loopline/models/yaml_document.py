"""YAML documents as JSON values, with the line of each key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loopline.models.json import Json

if TYPE_CHECKING:
    from yaml import Node, Token

KeyPath = tuple[str, ...]

_FENCE = re.compile(r"---[ \t]*\n")
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_TAG = "tag:yaml.org,2002:"
_MAX_REPEATED = 50_000
"""The most values and characters of texts that the aliases of a document may repeat."""


class YamlError(ValueError):
    """The text is not a valid document; `line` is the line of the error, from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A value, and the line of each key by its path.

    The path of an item in a list ends with its index; the path of a key inside an item omits the index.
    """

    value: Json
    lines: Mapping[KeyPath, int]

    def line(self, *path: str) -> int:
        """Return the line of the key at `path`; if it is unknown, that of the nearest enclosing key."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: str, *, first_line: int = 1, plain: bool = False) -> YamlDocument:
    """Parse a text with one YAML document; dates stay text. `first_line` is the number of its first line for errors.

    In a `plain` document all scalars are texts, and flow style, anchors and tags are errors. The value of an empty
    text is None.

    Raises:
        YamlError: the text is not valid YAML, is not a JSON value, or repeats a key; or its aliases repeat more than
            50,000 values and characters.
    """
    import yaml

    walk = _Walk(first_line, plain)
    try:
        if plain:
            _check_plain(text, first_line)
        node = yaml.compose(text, yaml.SafeLoader)
        value = None if node is None else walk.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + (mark.line if mark else 0)
        raise YamlError(line, error.problem or str(error)) from error
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # "\UFFFFFFFF" is not a character
        raise YamlError(first_line, " ".join(str(error).split())) from error
    except RecursionError as error:
        raise YamlError(first_line, "it is nested too deeply") from error
    return YamlDocument(value, walk.lines)


def split_front_matter(text: str, *, plain: bool = False) -> tuple[YamlDocument, str]:
    """Split a text into the document between two lines of `---` at its beginning, and the rest.

    Raises:
        YamlError: the front matter is missing, is never closed, or is not a valid document.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        problem = "is missing: write name: … and description: … there"
        if _FENCE.match(text):
            problem = "is never closed: end it with a line ---"
        raise YamlError(1, f"the front matter between two lines --- {problem}")
    try:
        return read_yaml(match[1], first_line=2, plain=plain), text[match.end() :]
    except YamlError as error:
        raise YamlError(error.line, f"the front matter: {error.problem}") from error


def _check_plain(text: str, first_line: int) -> None:
    """Raise `YamlError` for the first anchor, alias, tag, mapping in braces or list in brackets."""
    import yaml

    refused: dict[type[Token], str] = {
        yaml.AnchorToken: "an anchor",
        yaml.AliasToken: "an alias",
        yaml.TagToken: "a tag",
        yaml.FlowMappingStartToken: "a mapping in braces",
        yaml.FlowSequenceStartToken: "a list in brackets",
    }
    for token in yaml.scan(text, yaml.SafeLoader):
        if name := refused.get(type(token)):
            raise YamlError(first_line + token.start_mark.line, f"{name} is not allowed here")


@dataclass(slots=True)
class _Walk:
    """A converter of nodes to values; `ancestors` are the nodes around the current one.

    `repeated` is the number of values and characters that aliases have repeated.
    """

    first_line: int
    plain: bool = False
    lines: dict[KeyPath, int] = field(default_factory=dict[KeyPath, int])
    ancestors: list[Node] = field(default_factory=list["Node"])
    visited: set[Node] = field(default_factory=set["Node"])
    repeated: int = 0

    def value(self, node: Node, path: KeyPath) -> Json:
        """Convert a node to JSON, and store its line; raise `YamlError` if the node contains itself."""
        self.lines.setdefault(path, self._line(node))
        if node in self.ancestors:
            raise YamlError(self._line(node), "a value contains itself")
        self._count(node)
        self.ancestors.append(node)
        value = self._value(node, path)
        self.ancestors.pop()
        return value

    def _value(self, node: Node, path: KeyPath) -> Json:
        """Convert a node by its tag, or a plain scalar to text; raise `YamlError` for unsupported or invalid ones."""
        import yaml
        from yaml.constructor import SafeConstructor

        kind = node.tag.removeprefix(_TAG)
        if self.plain and kind not in ("map", "seq"):
            return str(node.value)
        match kind, node:
            case "map", yaml.MappingNode():
                return self._mapping(node, path)
            case "seq", yaml.SequenceNode():
                for index, item in enumerate(node.value):
                    self.lines[(*path, str(index))] = self._line(item)
                return [self.value(item, path) for item in node.value]
            case "null", yaml.ScalarNode():
                return None
            case (("bool" | "int" | "float"), yaml.ScalarNode()):
                try:
                    value: Json = SafeConstructor.yaml_constructors[node.tag](
                        SafeConstructor(), node
                    )
                    str(value)  # raises ValueError for an integer of more than 4,300 digits
                except (LookupError, ValueError, OverflowError) as error:
                    problem = f"{node.value!r} is not a valid {kind}"
                    raise YamlError(self._line(node), problem) from error
                return value
            case (("str" | "timestamp"), yaml.ScalarNode()):
                return str(node.value)
            case _:
                raise YamlError(self._line(node), f"the type {kind} is not supported here")

    def _mapping(self, node: Node, path: KeyPath) -> Json:
        """Convert a mapping and store the lines of its keys; raise `YamlError` for a repeated or non-text key."""
        values: dict[str, Json] = {}
        for key, item in node.value:
            if not isinstance(key.value, str):
                raise YamlError(self._line(key), "a key must be text")
            if key.tag != f"{_TAG}str" and not self.plain:
                raise YamlError(self._line(key), f"the key {key.value!r} must be text: quote it")
            if key.value in values:
                raise YamlError(self._line(key), f"{key.value!r} is given twice")
            self._count(key)
            self.lines[(*path, key.value)] = self._line(key)
            values[key.value] = self.value(item, (*path, key.value))
        return values

    def _count(self, node: Node) -> None:
        """Count a node that an alias repeats; raise `YamlError` above the limit."""
        if node in self.visited:
            self.repeated += 1 + len(node.value)
            if self.repeated > _MAX_REPEATED:
                problem = f"aliases repeat more than {_MAX_REPEATED:,} values and characters"
                raise YamlError(self._line(node), problem)
        self.visited.add(node)

    def _line(self, node: Node) -> int:
        return self.first_line + node.start_mark.line
