"""The specification of a loop, its system text, and its knowledge functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast

from msgspec import Struct, structs

from loopline.bundle.prepared_run import PreparedRun, Services
from loopline.crew import CHATCLI, Agent, Agents, Crew, CrewOptions, ExpandedSearch
from loopline.errors import BundleError, LooplineError, ToolError
from loopline.knowledge import Passage, SearchFilter
from loopline.models import Chain, ModelRegistry, OutputType
from loopline.names import nearest_hint
from loopline.react import Child, Limits, LoopOptions, MeteredModel, Preset, Quota
from loopline.react.loop_options import Effort
from loopline.reader import KnowledgeRead
from loopline.refs import KnowledgeRef, parse
from loopline.skills import REACT, Skills, SkillSelection
from loopline.timeline import FileAdded, Recorder, TextKept
from loopline.tools import (
    CallCache,
    FilteredSearch,
    KnowledgeSearch,
    Tool,
    ToolPattern,
    ToolSet,
    takes_filters,
    tool_failures,
)

NAME = "AGENTS.md"
CHARACTERS = 20_000
"""The characters of all pages that a prompt shows."""
MAX_PAGES = 8
ROOTS = ("docs", "src", "deploy", "tests", "")
"""The folders of a knowledge space in which a page may stand, the nearest first."""


@dataclass(frozen=True, slots=True)
class AgentsPage:
    """A page for agents: its pinned ref and its text, of which a prompt shows the first `room` characters."""

    ref: str
    text: str
    room: int = CHARACTERS

    def __str__(self) -> str:
        shown = self.text[: self.room]
        cut = "" if shown == self.text else f"\n[CUT] react.read gives all of {self.ref}."
        return (
            f"What {NAME} of these files says to agents, {self.ref}; what stands above counts more than it:\n"
            f"{shown.strip()}{cut}"
        )


async def nearest_pages(
    recorder: Recorder, read: KnowledgeRead | None, repositories: Sequence[str]
) -> Sequence[AgentsPage]:
    """Return the page of the turn's files, else that of each repository that has one.

    `repositories` are the names that begin the paths of several repositories. What comes from a knowledge space is
    recorded with the turn's header, so that its ref can be read when the repository is gone.
    """
    block = recorder.timeline.files.files.get(NAME)
    if block is not None and isinstance(block.body, FileAdded):
        return [AgentsPage(block.ref, block.body.text)]
    if read is None:
        return []
    names = [name for name in repositories if name][:MAX_PAGES] or [""]
    pages = [page for name in names if (page := await _nearest(recorder, read, name)) is not None]
    room = CHARACTERS // max(len(pages), 1)
    return [replace(page, room=room) for page in pages]


async def _nearest(recorder: Recorder, read: KnowledgeRead, repository: str) -> AgentsPage | None:
    """Return the page of a repository, None if it has none."""
    for ref in _places(repository):
        try:
            passage = await read(ref)
        except LooplineError:
            continue  # there is none in that folder
        page = AgentsPage(passage.ref, passage.text)
        text_kept = TextKept(ref=page.ref, text=page.text, title=NAME, mime="text/markdown")
        if page.ref not in recorder.timeline.kept_texts and text_kept not in recorder.foreword:
            recorder.foreword = [*recorder.foreword, text_kept]
        return page
    return None


def _places(repository: str) -> Iterator[str]:
    for root in ROOTS:
        yield f"ks:{'/'.join(name for name in (repository, root, NAME) if name)}"


class LoopSpec(Struct, frozen=True, kw_only=True):
    """The arguments of `build_react` together with the configuration.

    A tool is offered if every list of `allowed` patterns allows it; `child_tools` and `child_skills` are the patterns of a
    child run. `agent` is the agent that runs the loop, if one does, and `agent_digest` its definition; `base` is the bundle's
    own loop if that agent leads the conversation. The `call_cache` holds what equal calls of other runs gave.
    """

    tools_module: str
    skills_module: str
    search: KnowledgeSearch | None
    read: Callable[[str], Awaitable[Passage]] | None
    instructions: str
    models: Chain
    allowed: tuple[tuple[ToolPattern, ...], ...]
    preset: Preset
    limits: Limits
    output: OutputType[Any] | None = None
    child_tools: tuple[str, ...] | None = None
    child_skills: tuple[str, ...] | None = None
    agent: str = ""
    agent_digest: str = ""
    base: LoopSpec | None = None
    writes_files: bool = True
    call_cache: CallCache | None = None

    def options(self, run: PreparedRun) -> LoopOptions:
        """Return the options in force: of the preset, the environment, the code and configuration, and the turn.

        Raises:
            LooplineError: an option is out of its range, they do not go together, or a variable of the
                environment holds junk.
        """
        environment = self.preset.environment(run.services.environment)
        return self.preset.options.with_limits(environment, self.limits, run.limits).validated()

    def of_child(self, child: Child, models: ModelRegistry) -> LoopSpec:
        """Return the specification for a child run, with the changes of its task.

        Raises:
            ModelError: its task wants a model by a string that names no role.
        """
        task = child.task
        return structs.replace(
            self,
            instructions=self.instructions if task.instructions is None else task.instructions,
            models=self.models if task.model is None else models.chain(task.model),
            output=None,
            child_tools=self.child_tools if task.tools is None else task.tools,
            child_skills=self.child_skills if task.skills is None else task.skills,
            agent=task.agent,
            agent_digest=task.agent_digest,
            base=None,
            writes_files=task.writes_files,
            call_cache=task.call_cache,
        )

    def led_by(self, agent: Agent, effort: Effort | None, models: ModelRegistry) -> LoopSpec:
        """Return the specification with an agent that leads the conversation."""
        base = self.base or self
        return structs.replace(
            base,
            instructions=agent.instructions or base.instructions,
            models=models.chain(agent.model) if agent.model else base.models,
            child_tools=base.child_tools if agent.tools is None else tuple(agent.tools),
            child_skills=base.child_skills if agent.skills is None else tuple(agent.skills),
            limits={**base.limits, **cast("Limits", dict(agent.limits_with(effort)))},
            agent=agent.name,
            agent_digest=agent.digest,
            base=base,
        )

    def expanded(self, search: Tool, run: PreparedRun, quota: Quota) -> Tool:
        """Return the search, which also looks for words of an imagined answer if the bundle says so."""
        hyde = run.services.quality.for_preset(self.preset.name).hyde
        if hyde is None:
            return search
        model = MeteredModel(run.models.roles.get(hyde.model, self.models)[0], quota)
        return ExpandedSearch(search, hyde, model)

    def visible_skills(self, skills: Skills) -> Skills:
        """Return the skills that the loop sees.

        Raises:
            BundleError: a pattern of the child run matches no skill.
        """
        if self.child_skills is None:
            return skills
        selection = SkillSelection(enabled=self.child_skills)
        names = {skill.full_id: (skill.namespace, skill.id) for skill in skills}
        for pattern in selection.unmatched(names.values()):
            who = f"the agent {self.agent!r}" if self.agent else "a child run"
            hint = nearest_hint(pattern, names)
            raise BundleError(f"{who}: no skill is called {pattern!r}, {hint}")
        return skills.enabled({REACT: selection})

    def offers(self, name: str) -> bool:
        """Return whether the loop may call one of its own tools: a child run only what its patterns name."""
        patterns = self.child_tools
        return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def crew_of(agents: Agents, preset: Preset, services: Services) -> Crew:
    """Return the crew of a loop; the preset `chatcli` takes its options from the environment.

    Raises:
        LooplineError: a variable of the environment holds junk.
    """
    in_force = services.quality.for_preset(preset.name)
    crew = Crew(
        agents=agents,
        clock=services.clock,
        pipeline=in_force.pipeline,
        reasoning=in_force.quality.reasoning,
        learns=in_force.reflexion is not None,
    )
    if preset.name != CHATCLI:
        return crew
    environment = services.environment
    return replace(
        crew,
        agents=agents.with_environment(environment),
        options=CrewOptions.from_environment(environment),
    )


_RULES = """You work in rounds: in each you either call tools or give the final answer.
- Every block has a ref such as tc:turn_1.c2.result; react.read reads any ref again.
- Cite sources in the final answer right after the sentence they support, as [[S:1]] or [[S:2,3]], \
with the numbers that tool results give.
- With react.plan you can keep a plan; acknowledge its steps in the text beside your calls, in lines \
that begin ✓ [n], ✗ [n], … [n] or □ [n].
- Old rounds may be shown in part, named in a line or summed up; the refs there restore them. What must never be lost goes into lines of that text which begin [P] preference, [D] decision, [S] structure, [A] achievement or [K] key artifact."""


def system_text(
    instructions: str, source: str, tools: ToolSet, skills: Skills, pages: Sequence[AgentsPage] = ()
) -> str:
    """Return the system text of a loop: the bundle's instructions and name, the rules, the skills, the pages for agents."""
    parts = [instructions.strip(), f"Bundle: {source}", _RULES]
    if "react.search_knowledge" in tools:
        parts.append("Look things up with react.search_knowledge before you answer.")
    gallery = skills.gallery(tools)
    if gallery:
        parts.append(f"Skills, whose bodies react.read reads by their sk: ref:\n{gallery}")
    parts += map(str, pages)
    return "\n\n".join(part for part in parts if part)


def guarded_search(
    search: KnowledgeSearch | FilteredSearch,
) -> KnowledgeSearch | FilteredSearch:
    """Return the search with its failures as errors that the model reads."""
    if takes_filters(search):
        filtered = search

        async def guarded_filtered(
            query: str, *, limit: int = 5, within: SearchFilter | None = None
        ) -> Sequence[Passage]:
            return await _checked(partial(filtered, query, limit=limit, within=within))

        return guarded_filtered
    plain = search

    async def guarded(query: str, *, limit: int = 5) -> Sequence[Passage]:
        return await _checked(partial(plain, query, limit=limit))

    return guarded


async def _checked(search: Callable[[], Awaitable[Sequence[Passage]]]) -> Sequence[Passage]:
    with tool_failures("the search"):
        passages = await search()
        for passage in passages:
            _check_passage(passage)
    return passages


def guarded_read(read: Callable[[str], Awaitable[Passage]]) -> KnowledgeRead:
    """Return the read with its failures as errors that the model reads."""

    async def guarded(ref: str) -> Passage:
        with tool_failures(ref):
            passage = await read(ref)
            _check_passage(passage)
        return passage

    return guarded


def _check_passage(passage: object) -> None:
    """Refuse a passage that nobody could read again by its ref."""
    if not isinstance(passage, Passage):
        raise ToolError(f"a knowledge function gave {passage!r}, not a Passage")
    if not isinstance(parse(passage.ref), KnowledgeRef):
        raise ToolError(f"a passage's ref must be a ks: ref, not {passage.ref!r}")
