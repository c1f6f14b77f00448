"""`loopline check`, `tool`, `new` and `bundles`: commands for the authors of bundles."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.table import Table
from rich.text import Text

from loopline.bundle import (
    Available,
    Installation,
    LoadedBundle,
    Properties,
    available,
    build_call_problems,
    call_load_hook,
    create,
    descriptor_modules,
    load,
    load_skills,
    load_tools,
    make_deps,
    merged,
)
from loopline.cli.access import opened
from loopline.cli.knowledge import indexed
from loopline.cli.next_commands import Started
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, FAILED, UsageError
from loopline.cli.terminal import QUIET, Screen, counted, visible
from loopline.clock import SystemClock
from loopline.errors import BundleError, LooplineError, PropertyError, ToolError
from loopline.knowledge import KnowledgeState
from loopline.models import Json, JsonObject, OutputSchema, dumps, output_type_of
from loopline.prompt import Native, View
from loopline.reader import ConversationView, Reader
from loopline.skills import Skills
from loopline.timeline import CustomEvent, Moment, Source, Timeline
from loopline.tools import (
    AskUser,
    Emission,
    Outcome,
    Tool,
    ToolContext,
    ToolInvocation,
    ToolSet,
    check_deps,
)

ROOTS = ("docs_root", "src_root", "deploy_root", "tests_root")

T = TypeVar("T")


@dataclass(slots=True)
class Findings:
    """What was found, and what is wrong: problems stop the bundle, warnings do not."""

    bundle: str
    properties: Properties = field(default_factory=Properties)
    tools: ToolSet = field(default_factory=ToolSet)
    skills: Skills = field(default_factory=Skills)
    knowledge: KnowledgeState | None = None
    output: OutputSchema | None = None
    problems: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])

    def attempt(self, do: Callable[[], T], otherwise: T) -> T:
        """What `do` gives; when it fails, the problem is noted."""
        try:
            return do()
        except LooplineError as error:
            self.note(error)
            return otherwise

    def note(self, error: LooplineError) -> None:
        """Note a problem, once."""
        if str(error) not in self.problems:
            self.problems.append(str(error))


async def check(bundle: str, choices: Choices, screen: Screen) -> int:
    """Print what the bundle is made of and every problem; a failure if there is one."""
    try:
        settings = choices.settings
    except PropertyError as error:
        raise UsageError(str(error)) from error
    loaded = load(bundle)
    found = Findings(loaded.bundle.id)
    configuration, folder = loaded.bundle.defaults, loaded.folder
    found.properties = found.attempt(
        lambda: merged(configuration, folder=folder, overrides=settings), Properties()
    )
    _descriptors(loaded, found)
    kind = found.attempt(lambda: output_type_of(loaded.bundle.output_type), None)
    found.output = kind.schema if kind else None
    try:
        async with opened(bundle, choices, screen) as harness:
            found.knowledge = harness.knowledge_state
            _dependencies(loaded, harness.deps, found)
    except LooplineError as error:
        found.note(error)
    if found.knowledge is not None:
        found.warnings += found.knowledge.warnings
    _show_findings(found, choices, screen)
    return FAILED if found.problems else ANSWERED


def _descriptors(loaded: LoadedBundle, found: Findings) -> None:
    """Read the descriptors that the bundle's code names."""
    tools = dict[str, Tool]()
    for module in descriptor_modules(loaded, "tools") or [""]:
        tools |= found.attempt(partial(_specified, module, loaded), ToolSet())
    found.tools = ToolSet(tools.values())
    for module in descriptor_modules(loaded, "skills") or [""]:
        skills = found.attempt(partial(load_skills, module, loaded), Skills())
        found.skills = Skills((*found.skills, *skills), (*found.skills.warnings, *skills.warnings))
    found.warnings += found.skills.warnings
    found.problems += build_call_problems(loaded)
    if not inspect.iscoroutinefunction(loaded.bundle.workflow.process):
        name = loaded.bundle.workflow.__name__
        found.problems.append(f"{loaded.folder}: {name}.process must be `async def`")


def _dependencies(loaded: LoadedBundle, deps: object, found: Findings) -> None:
    """Note what the tools' functions miss; a bundle without a factory may be given it in Python."""
    try:
        check_deps(found.tools.values(), deps)
    except BundleError as error:
        if loaded.bundle.deps is None:
            found.warnings.append(str(error))
        else:
            found.note(error)


def _specified(module: str, loaded: LoadedBundle) -> ToolSet:
    """The tools, whose schemas are made now and not when a model first asks."""
    tools = load_tools(module, loaded)
    return tools if tools.specs else ToolSet()


def _show_findings(found: Findings, choices: Choices, screen: Screen) -> None:
    if choices.as_json:
        screen.raw(dumps(_findings_document(found)))
    else:
        for line in _lines(found):
            screen.answer(line)
    for warning in found.warnings:
        screen.note(Text(f"warning: {visible(warning)}", style="yellow"))
    for problem in found.problems:
        screen.error(problem)
    if not found.problems:
        screen.note(Text(f"✓ {found.bundle} can be run", style="green"))


def _lines(found: Findings) -> Iterator[Text]:
    yield Text(found.bundle, style="bold")
    yield _head("tools", counted(len(found.tools), "tool") if found.tools else "none of its own")
    for name, tool in found.tools.items():
        line = Text.assemble(
            f"    {name}",
            (f"({_parameters(tool.spec.parameters)})", QUIET),
            f"  {tool.effect}",
        )
        yield line.append(f"  {_first_line(tool.spec.description)}", style=QUIET)
    yield _head("skills", counted(len(list(found.skills)), "skill"))
    for skill in found.skills:
        yield Text.assemble(
            f"    {skill.ref}", (f"  {skill.name}: {_first_line(skill.description)}", QUIET)
        )
    yield from _knowledge(found)
    if found.output is not None:
        yield _head("output", f"{found.output.name}({_parameters(found.output.as_object)})")
    yield _head("properties", "" if found.properties.written else "none")
    for name, value in found.properties.flat().items():
        if name.partition(".")[0] in found.properties.written:
            yield Text.assemble(f"    {name}", (f" = {dumps(value)}", QUIET))


def _knowledge(found: Findings) -> Iterator[Text]:
    if found.knowledge is None:
        yield _head("knowledge", "none")
        return
    yield _head("knowledge", indexed(found.knowledge, hint=False).plain)
    section = found.properties.section("knowledge")
    for root in ROOTS:
        if section.get(root):
            name = root.removesuffix("_root")
            yield Text.assemble(f"    ks:{name}/", (f"  {section[root]}", QUIET))
    for skipped in found.knowledge.skipped:
        yield Text(f"    left out: {visible(skipped.path)}: {skipped.reason}", QUIET)


def _head(name: str, summary: str) -> Text:
    return Text.assemble((f"  {name}", "bold"), (f"  {summary}" if summary else "", QUIET))


def _parameters(schema: JsonObject) -> str:
    """`name: string, limit?: integer`."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return ""
    needed = required if isinstance(required, list) else []
    return ", ".join(
        f"{name}{'' if name in needed else '?'}: {_type(described)}"
        for name, described in properties.items()
    )


def _type(described: Json) -> str:
    """The type as the schema says it, or the one that it refers to."""
    if not isinstance(described, dict):
        return "any"
    match described:
        case {"type": str(name)}:
            return name
        case {"enum": list(values)}:
            return "|".join(dumps(value) for value in values)
        case {"anyOf": list(options)}:
            return "|".join(_type(option) for option in options)
        case {"$ref": str(ref)}:
            return ref.rpartition("/")[2]
        case _:
            return "any"


def _first_line(text: str) -> str:
    """The first line of a text."""
    return text.strip().partition("\n")[0]


def _findings_document(found: Findings) -> JsonObject:
    tools: list[Json] = [
        {
            "name": name,
            "effect": tool.effect,
            "description": tool.spec.description,
            "parameters": tool.spec.parameters,
        }
        for name, tool in found.tools.items()
    ]
    skills: list[Json] = [
        {"ref": skill.ref, "name": skill.name, "description": skill.description}
        for skill in found.skills
    ]
    return {
        "bundle": found.bundle,
        "ok": not found.problems,
        "tools": tools,
        "skills": skills,
        "output": asdict(found.output) if found.output else None,
        "properties": {**found.properties.flat()},
        "problems": list[Json](found.problems),
        "warnings": list[Json](found.warnings),
    }


TURN = "turn_1"
"""The turn that a call outside any conversation is told it is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The call that was asked for."""

    bundle: str
    name: str
    arguments: str


async def tool(wanted: ToolCall, choices: Choices, screen: Screen) -> int:
    """Call the tool and print its result; a failure if it refuses."""
    loaded = load(wanted.bundle)
    tools = dict[str, Tool]()
    for module in descriptor_modules(loaded, "tools") or [""]:
        tools |= load_tools(module, loaded)
    found = _tool(wanted.name, ToolSet(tools.values()))
    arguments = _checked(found, wanted.arguments)
    call = _call(loaded, choices, screen)
    await call_load_hook(loaded)
    try:
        async with AsyncExitStack() as stack:
            deps = await make_deps(loaded, stack)
            check_deps([found], deps)
            context = replace(call.context, deps=deps)
            outcome = await found.run(arguments, replace(call, context=context))
    except AskUser as asked:
        screen.error(
            f"{wanted.name} asks the user: {visible(asked.question)!r}. Outside a conversation nobody can "
            "answer: have a model call it with loopline run"
        )
        return FAILED
    except ToolError as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        screen.error(f"{wanted.name}: {error}{notes}")
        return FAILED
    _show_outcome(outcome, choices, screen)
    return ANSWERED


def _tool(name: str, tools: ToolSet) -> Tool:
    if name.startswith("react."):
        raise UsageError(f"{name} needs a conversation: use loopline run, search or read")
    try:
        return tools.find(name)
    except ToolError as error:
        raise UsageError(str(error)) from error


def _checked(found: Tool, written: str) -> JsonObject:
    try:
        value = cast("Json", json.loads(written))
    except ValueError as error:
        raise UsageError(f"the arguments are no JSON: {error}: {written!r}") from error
    if not isinstance(value, dict):
        raise UsageError(f"the arguments must be a JSON object such as {{}}, not {written!r}")
    try:
        found.check(value)
    except ToolError as error:
        raise UsageError(str(error)) from error
    return value


def _call(loaded: LoadedBundle, choices: Choices, screen: Screen) -> ToolInvocation:
    try:
        properties = merged(
            loaded.bundle.defaults, folder=loaded.folder, overrides=choices.settings
        )
    except PropertyError as error:
        if choices.props:
            raise UsageError(str(error)) from error
        raise
    clock = SystemClock()
    scratchpad: MutableMapping[str, Any] = {}

    def progress(text: str) -> None:
        screen.note(Text(visible(text), style=QUIET))

    def emit(event: CustomEvent, durable: bool) -> Emission:
        del durable  # there is no log
        screen.note(Text(f"{event.name} {visible(dumps(event.data))}", style=QUIET))
        return Emission()

    context = ToolContext(
        call_id="c1",
        idempotency_key=f"{clock.new_id()}:c1",
        conversation="",
        turn_id=TURN,
        user=choices.whose,
        properties=properties.flat(),
        scratchpad=scratchpad,
        on_progress=progress,
        on_emit=emit,
    )
    timeline = Timeline()
    return ToolInvocation(
        context=context,
        timeline=timeline,
        view=View(Native()),
        reader=Reader(conversation=ConversationView(timeline)),
        moment=Moment(clock.now(), TURN),
    )


def _show_outcome(outcome: Outcome, choices: Choices, screen: Screen) -> None:
    if choices.as_json:
        sources: list[Json] = [_source_document(source) for source in outcome.sources]
        shown: JsonObject = {
            "text": outcome.text,
            "sources": sources,
            "artifact": outcome.artifact,
        }
        screen.raw(dumps(shown))
        return
    screen.exact(outcome.text)
    for source in outcome.sources:
        screen.note(Text(f"source: {visible(source.title or source.url)} — {visible(source.url)}"))


def _source_document(source: Source) -> Json:
    return {"title": source.title, "url": source.url}


QUESTION = "How long is this sentence?"
EXAMPLE = ("text.statistics", '{"text": "One. Two more words!"}')
"""A tool that a new bundle has, and arguments for it."""


async def new(name: str, parent: Path, screen: Screen) -> int:
    """Write a new bundle, and print what to do with it next."""
    project = create(name, parent, Installation.now())
    files = sorted(path for path in project.rglob("*") if path.is_file())
    for file in files:
        screen.note(Text(str(file), style=QUIET))
    screen.note(Text(f"✓ {project} is a bundle; next:", style="green"))
    for line in next_commands(project, Started.now(), tested=find_spec("pytest") is not None):
        screen.command(line)
    return ANSWERED


def next_commands(project: Path, started: Started, *, tested: bool) -> list[str]:
    """Talk to a new bundle, call its tool, and run its test, or without pytest check it."""
    place = str(project) if project.parts[:-1] else f"./{project}"
    test = [*started.python, "-m", "pytest", place]
    check = [*started.program, "check", place]
    return [
        shlex.join([*started.program, "run", place, QUESTION]),
        shlex.join([*started.program, "tool", place, *EXAMPLE]),
        shlex.join(test if tested else check),
    ]


async def bundles(choices: Choices, screen: Screen) -> int:
    """Print what can be opened by name."""
    found = available()
    if choices.as_json:
        rows: list[Json] = [{"name": one.name, "place": one.location} for one in found]
        screen.raw(dumps(rows))
    elif found:
        plain = "\n".join(f"{visible(one.name)}\t{visible(one.location)}" for one in found)
        screen.answer_whole(_bundle_table(found), plain)
    else:
        screen.note(Text("none installed and none in ./bundles: begin one with loopline new NAME"))
    return ANSWERED


def _bundle_table(found: Sequence[Available]) -> Table:
    shown = Table.grid(padding=(0, 2))
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(style=QUIET, overflow="fold")
    for one in found:
        shown.add_row(visible(one.name), visible(one.location))
    return shown
