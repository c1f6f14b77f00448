"""What `build_react` was given, and what a loop goes by because of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loopline.bundle.prepared_run import PreparedRun
from loopline.errors import LooplineError, ToolError
from loopline.knowledge import Passage
from loopline.models import Chain, ModelRegistry, OutputType
from loopline.react import Child, Limits, LoopOptions, Preset
from loopline.reader import KnowledgeRead
from loopline.refs import KnowledgeRef, parse
from loopline.skills import Skills
from loopline.tools import KnowledgeSearch, ToolSet


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSpec:
    """What `build_react` was given, and what was configured.

    A tool is offered that each list of `allowed` patterns allows; `child_tools` are what a child run may
    have of these.
    """

    tools_module: str
    skills_module: str
    search: KnowledgeSearch | None
    read: Callable[[str], Awaitable[Passage]] | None
    instructions: str
    models: Chain
    allowed: tuple[tuple[str, ...], ...]
    preset: Preset
    limits: Limits
    output: OutputType[Any] | None = None
    child_tools: tuple[str, ...] | None = None

    def options(self, run: PreparedRun) -> LoopOptions:
        """Return what is in force: the preset, the environment, the code and the configuration, the turn.

        Raises:
            LooplineError: an option is out of its range, they do not go together, or a variable of the
                environment holds junk.
        """
        environment = self.preset.environment(run.services.environment)
        return self.preset.options.with_limits(environment, self.limits, run.limits).validated()

    def of_child(self, child: Child, models: ModelRegistry) -> LoopSpec:
        """The same for a child run, with what its task has otherwise.

        Raises:
            ModelError: its task wants a model by a string that names no role.
        """
        task = child.task
        return replace(
            self,
            instructions=self.instructions if task.instructions is None else task.instructions,
            models=self.models if task.model is None else models.chain(task.model),
            output=None,
            child_tools=self.child_tools if task.tools is None else task.tools,
        )


_RULES = """You work in rounds: in each you either call tools or give the final answer.
- Every block has a ref such as tc:turn_1.c2.result; react.read reads any ref again.
- Cite sources in the final answer right after the sentence they support, as [[S:1]] or [[S:2,3]], \
with the numbers that tool results give.
- With react.plan you can keep a plan; acknowledge its steps in the text beside your calls, in lines \
that begin ✓ [n], ✗ [n], … [n] or □ [n].
- Old rounds may be shown in part, named in a line or summed up; the refs there restore them. What must never be lost goes into lines of that text which begin [P] preference, [D] decision, [S] structure, [A] achievement or [K] key artifact."""


def system_text(instructions: str, source: str, tools: ToolSet, skills: Skills) -> str:
    """The system text of a loop: the bundle's instructions, its name, the rules, its skills."""
    parts = [instructions.strip(), f"Bundle: {source}", _RULES]
    if "react.search_knowledge" in tools:
        parts.append("Look things up with react.search_knowledge before you answer.")
    gallery = skills.gallery()
    if gallery:
        parts.append(f"Skills, whose bodies react.read reads by their sk: ref:\n{gallery}")
    return "\n\n".join(part for part in parts if part)


def guarded_search(search: KnowledgeSearch) -> KnowledgeSearch:
    """The search, whose failures the model reads."""

    async def guarded(query: str, *, limit: int = 5) -> Sequence[Passage]:
        try:
            passages = await search(query, limit=limit)
            for passage in passages:
                _check_passage(passage)
        except LooplineError:
            raise
        except Exception as error:
            raise ToolError(f"the search failed: {type(error).__name__}: {error}") from error
        return passages

    return guarded


def guarded_read(read: Callable[[str], Awaitable[Passage]]) -> KnowledgeRead:
    """The read, whose failures the model reads."""

    async def guarded(ref: str) -> Passage:
        try:
            passage = await read(ref)
            _check_passage(passage)
        except LooplineError:
            raise
        except Exception as error:
            raise ToolError(f"{ref} failed: {type(error).__name__}: {error}") from error
        return passage

    return guarded


def _check_passage(passage: object) -> None:
    """Refuse what the model could be shown and nobody could read again."""
    if not isinstance(passage, Passage):
        raise ToolError(f"a knowledge function gave {passage!r}, not a Passage")
    if not isinstance(parse(passage.ref), KnowledgeRef):
        raise ToolError(f"a passage's ref must be a ks: ref, not {passage.ref!r}")
