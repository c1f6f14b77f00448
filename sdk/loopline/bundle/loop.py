"""The specification of a loop, its system text, and its knowledge functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, TypeVar, cast

from msgspec import Struct, structs

from loopline import tools as toolbox
from loopline.bundle.prepared_run import PreparedRun, Services
from loopline.crew import CHATCLI, Agent, Agents, Crew, CrewOptions, ExpandedSearch
from loopline.errors import BundleError, LooplineError, ToolError
from loopline.knowledge import Passage
from loopline.models import UNSET, Chain, ModelRegistry, ModelSettings, OutputType
from loopline.names import nearest_hint
from loopline.prompt import escape_frame
from loopline.react import Child, Guard, Limits, LoopOptions, MeteredModel, Preset, Quota
from loopline.react.loop_options import Effort
from loopline.reader import KnowledgeRead
from loopline.refs import KnowledgeRef, parse
from loopline.skills import REACT, Skills, SkillSelection
from loopline.timeline import FileAdded, Recorder, TextKept, TurnHeader

NAME = "AGENTS.md"
CHARACTERS = 20_000
"""The characters of all pages together in a prompt."""
MAX_PAGES = 8
ROOTS = ("docs", "src", "deploy", "tests", "")
"""The folders of a knowledge space that are searched for a page, in this order."""


@dataclass(frozen=True, slots=True)
class AgentsPage:
    """An AGENTS.md page: its pinned ref and its text. A prompt contains the first `room` characters."""

    ref: str
    text: str
    room: int = CHARACTERS

    def __str__(self) -> str:
        shown = self.text[: self.room]
        cut = "" if shown == self.text else f"\n[CUT] react.read gives all of {self.ref}."
        return (
            f"What {NAME} of these files says to agents, {self.ref}; what stands above counts more than it:\n"
            f"{escape_frame(shown.strip())}{cut}"
        )


async def nearest_pages(
    recorder: Recorder, read: KnowledgeRead | None, repositories: Sequence[str]
) -> Sequence[AgentsPage]:
    """Return the AGENTS.md in the files of the turn; without one, the page of each repository of the knowledge space.

    `repositories` are the names of the repositories in a space of several. Only the first 8 are read, and each page
    may fill an equal share of 20,000 characters. A page of the space is recorded with the header of the turn, so that
    its ref can be read when the repository no longer exists. The result is empty without a page, or if `read` is None.
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
    """Read the AGENTS.md of a repository from the first folder of `ROOTS` that has a page; None without a page.

    A page that the timeline does not have is added to the foreword of the recorder.
    """
    for root in ROOTS:
        ref = f"ks:{'/'.join(name for name in (repository, root, NAME) if name)}"
        try:
            passage = await read(ref)
        except LooplineError:
            continue  # the folder does not have the page
        page = AgentsPage(passage.ref, passage.text)
        text_kept = TextKept(ref=page.ref, text=page.text, title=NAME, mime="text/markdown")
        if page.ref not in recorder.timeline.kept_texts and text_kept not in recorder.foreword:
            recorder.foreword = [*recorder.foreword, text_kept]
        return page
    return None


class LoopSpec(Struct, frozen=True, kw_only=True):
    """The specification of a loop: the arguments of `build_react`, combined with the configuration.

    A tool is offered if each list of patterns in `allowed` has a match. `child_tools` and `child_skills` are the patterns
    of a child run, or of the agent that runs the loop. `agent` is the name of that agent, and `agent_digest` the digest of
    its definition; both are empty for the bundle's own loop. `base` is the bundle's own loop if an agent leads the
    conversation. `call_cache` has the results of equal calls in other runs. A `lean` loop offers the tools of the loop itself
    only if the bundle has something to use them on.
    """

    tools_module: str
    skills_module: str
    search: toolbox.KnowledgeSearch | None
    read: Callable[[str], Awaitable[Passage]] | None
    instructions: str
    models: Chain
    allowed: tuple[tuple[toolbox.ToolPattern, ...], ...]
    preset: Preset
    limits: Limits
    output: OutputType[Any] | None = None
    child_tools: tuple[str, ...] | None = None
    child_skills: tuple[str, ...] | None = None
    agent: str = ""
    agent_digest: str = ""
    base: LoopSpec | None = None
    writes_files: bool = True
    call_cache: toolbox.CallCache | None = None
    guards: tuple[Guard, ...] = ()
    lean: bool = False
    agent_settings: ModelSettings = UNSET

    def options(self, run: PreparedRun) -> LoopOptions:
        """Combine the options of the preset, the environment, the code and configuration, and the turn. Later ones win.

        Raises:
            LooplineError: an option is out of range, options contradict each other, or the value of an environment
                variable is not valid.
            ModelRequestError: a model of the chain does not support a setting.
        """
        environment = self.preset.environment(run.services.environment)
        if "deadline_seconds" in environment and run.services.agents:
            # The time of a worker limits each run of an agent (`CrewOptions`), and not the turn that waits for them.
            environment["deadline_seconds"] = None
        layers: tuple[Limits, ...] = (environment, self.limits, run.limits)
        if self.agent_settings != UNSET:
            layers = (*layers[:-1], {"settings": self.agent_settings}, run.limits)
        options = self.preset.options.with_limits(*layers).validated()
        for (
            model
        ) in self.models:  # so that a turn does not begin with a model that refuses its settings
            model.capabilities.supported(
                options.settings, model.name, options.reasoning_effort or ""
            )
        return options

    def header(
        self, run: PreparedRun, options: LoopOptions, tools: toolbox.ToolSet | None = None
    ) -> TurnHeader:
        """Return the header of a turn that runs this loop, with the names of the `tools` that the client runs."""
        agent = self.agent, self.agent_digest
        return run.header(self.models, options, self.preset.name, self.output, agent, tools)

    def for_child(self, child: Child, models: ModelRegistry) -> LoopSpec:
        """Return the specification of a child run: this one with the changes of the task.

        Raises:
            ModelError: the model of the task is a model string, such as `openai:gpt-5`, instead of the name of a role.
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
            agent_settings=task.settings,
        )

    def for_leader(self, agent: Agent, effort: Effort | None, models: ModelRegistry) -> LoopSpec:
        """Return the specification for an agent that leads the conversation: that of the bundle with the agent's changes."""
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
            agent_settings=agent.settings or UNSET,
        )

    def expand_search(self, search: toolbox.Tool, run: PreparedRun, quota: Quota) -> toolbox.Tool:
        """Wrap the search if `Quality(hyde=…)` is set, to add words of an imagined answer to the query.

        Without `hyde` the search is returned unchanged. The usage of the model counts against the quota.
        """
        hyde = run.services.quality_of(self.preset.name).hyde
        if hyde is None:
            return search
        model = MeteredModel(run.models.roles.get(hyde.model, self.models)[0], quota)
        return ExpandedSearch(search, hyde, model)

    def visible_skills(self, skills: Skills) -> Skills:
        """Return the skills that the patterns of the loop allow.

        Raises:
            BundleError: a pattern does not match any skill.
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
        """Return True if the loop may call this crew tool: it matches a pattern, or the loop is not limited."""
        patterns = self.child_tools
        return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def uses_loop_tools(options: LoopOptions, services: Services) -> bool:
    """Return True if a loop needs `react.plan`, `react.read` and `react.hide`.

    It needs them if plans, files, the search in past turns, AGENTS.md pages or programs are switched on.
    """
    settings = services.settings
    return (
        options.plans is True
        or options.workspace != "off"
        or settings.memsearch
        or settings.agents_md
        or "execution" in services.properties.written
    )


def crew_of(agents: Agents, preset: Preset, services: Services) -> Crew:
    """Return the crew of a loop. With the preset `chatcli`, environment variables change its options.

    Raises:
        LooplineError: the value of an environment variable is not valid.
    """
    choice = services.quality_of(preset.name)
    crew = Crew(
        agents=agents,
        clock=services.clock,
        pipeline=choice.pipeline,
        reasoning=choice.quality.reasoning,
        learns=choice.reflexion is not None,
    )
    if preset.name != CHATCLI:
        return crew
    environment = services.environment
    return replace(
        crew,
        agents=agents.with_environment(environment),
        options=CrewOptions.from_environment(environment),
    )


_CITE = "Cite sources right after the sentence they support, as [[S:1]] or [[S:2,3]], by their numbers in results."
_NOTES = (
    "Lines beside calls that begin [P] preference, [D] decision, [S] structure, [A] achievement or [K] artifact are "
    "kept."
)


def system_text(
    instructions: str,
    source: str,
    tools: toolbox.ToolSet,
    skills: Skills,
    pages: Sequence[AgentsPage] = (),
    *,
    lean: bool = False,
) -> str:
    """Return the system text of a loop: the instructions, the bundle, the rules, the skills and the pages.

    `source` is the id of the bundle, or the path with which it was opened. Of the fixed rules a `lean` loop has only that for
    citations, and only with tools. With `react.search_knowledge` in the tools, a rule says to search first.
    """
    rules = [_CITE] if lean and tools else [] if lean else [_CITE, _NOTES]
    if "react.search_knowledge" in tools:
        rules.append("Search with react.search_knowledge before you answer.")
    parts = [instructions.strip(), f"Bundle: {source}", "\n".join(rules)]
    if skills.skills:
        gallery = skills.gallery(tools)
        parts.append(f"Skills, read by react.read:\n{gallery}")
    parts += map(str, pages)
    return "\n\n".join(part for part in parts if part)


T = TypeVar("T")


def as_async(function: Callable[..., Awaitable[T] | T]) -> Callable[..., Awaitable[T]]:
    """Return the function if it is `async def`, otherwise an async function that calls it in a thread.

    If the call in the thread returns an awaitable, that is awaited.
    """
    if inspect.iscoroutinefunction(function):
        return function

    @wraps(function)  # so that its parameters can be read
    async def call_in_thread(*arguments: Any, **keywords: Any) -> T:
        returned: Any = await asyncio.to_thread(function, *arguments, **keywords)
        return cast("T", await returned if inspect.isawaitable(returned) else returned)

    return call_in_thread


def guard_search(
    search: toolbox.KnowledgeSearch | toolbox.FilteredSearch,
) -> toolbox.KnowledgeSearch | toolbox.FilteredSearch:
    """Wrap a search: failures and passages that are not valid become ToolErrors, which the model reads.

    A LooplineError of the search is raised unchanged.
    """

    @wraps(search)  # so that it can be seen whether the search has filters
    async def search_checked(query: str, **options: Any) -> Sequence[Passage]:
        with toolbox.tool_failures("the search"):
            passages = await search(query, **options)
            for passage in passages:
                _check_passage(passage)
        return passages

    return search_checked


def guard_read(read: Callable[[str], Awaitable[Passage]]) -> KnowledgeRead:
    """Wrap a read function: failures and a passage that is not valid become ToolErrors, which the model reads.

    A LooplineError of the function is raised unchanged.
    """

    async def read_checked(ref: str) -> Passage:
        with toolbox.tool_failures(ref):
            passage = await read(ref)
            _check_passage(passage)
        return passage

    return read_checked


def _check_passage(passage: object) -> None:
    """Raise a ToolError if the value is not a Passage with a `ks:` ref."""
    if not isinstance(passage, Passage):
        raise ToolError(f"a knowledge function returned {passage!r}, not a Passage")
    if not isinstance(parse(passage.ref), KnowledgeRef):
        raise ToolError(f"a passage's ref must be a ks: ref, not {passage.ref!r}")
