"""`loopline check`, `tool`, `new` and `bundles`: commands for authors of bundles."""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

import click
from msgspec import structs
from rich.table import Table
from rich.text import Text

from loopline import bundle as bundles
from loopline import tools as toolbox
from loopline.cli import parameters
from loopline.cli.bundle_access import Invocation, misused_properties, open_bundle, parse_properties
from loopline.cli.knowledge import index_line, vectors_line
from loopline.cli.options import ANSWERED, FAILED, Choices, UsageError, command, misuse
from loopline.cli.terminal import QUIET, WARNING, Screen, escape, quantity
from loopline.cli.turn_display import schema_fields
from loopline.clock import SystemClock
from loopline.crew import Agents
from loopline.errors import BundleError, LooplineError, ToolError
from loopline.harness import features_for, open_executions, skill_places
from loopline.knowledge import ROOT_SETTINGS, KnowledgeState
from loopline.models import Json, JsonObject, OutputSchema, dumps, output_type_of
from loopline.models.safe_text import hide_password
from loopline.prompt import Native, View
from loopline.reader import ConversationView, Reader
from loopline.sandbox import Feature
from loopline.search import VectorState
from loopline.skills import Skills
from loopline.timeline import CustomEvent, Moment, Timeline

TURN_ID = "turn_1"
"""The turn in the context of a tool that is called outside a conversation."""
QUESTION = "How long is this sentence?"
EXAMPLE_ARGUMENTS = '{"text": "One. Two more words!"}'
"""Arguments for the tool `statistics` of a new bundle."""

OTHERS_TOOLS = ("react.", "mcp.", "web_")
"""Prefixes of tool ids that the bundle does not define itself."""

T = TypeVar("T")


@dataclass(slots=True)
class Findings:
    """The parts of a bundle, its problems, which prevent running it, and its warnings."""

    bundle: str
    properties: bundles.Properties = field(default_factory=bundles.Properties)
    tools: toolbox.ToolSet = field(default_factory=toolbox.ToolSet)
    servers: bundles.McpTools = field(default_factory=bundles.McpTools)
    skills: Skills = field(default_factory=Skills)
    agents: Agents = field(default_factory=Agents)
    knowledge: KnowledgeState | None = None
    vectors: VectorState | None = None
    output: OutputSchema | None = None
    problems: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])

    def attempt(self, do: Callable[[], T], default: T) -> T:
        """Return the result of `do`; if it raises a LooplineError, add its problems and return `default`."""
        try:
            return do()
        except LooplineError as error:
            self.add(error)
            return default

    def add(self, error: LooplineError) -> None:
        """Add the problems of an error that are not yet in the list."""
        problems = error.problems if isinstance(error, BundleError) else (str(error),)
        self.problems += [problem for problem in problems if problem not in self.problems]


@command
@parameters.bundle_argument
@parameters.model_options
@parameters.json_option
async def check(choices: Choices, screen: Screen, bundle: str) -> int:
    """Show the parts of a bundle, its problems and its warnings."""
    overrides = parse_properties(choices)
    loaded = bundles.load(bundle)
    findings = Findings(loaded.bundle.id)
    findings.properties = findings.attempt(
        lambda: loaded.properties(overrides), bundles.Properties()
    )
    _read_descriptors(loaded, findings)
    kind = findings.attempt(lambda: output_type_of(loaded.bundle.output_type), None)
    findings.output = kind.schema if kind else None
    try:
        async with open_bundle(bundle, choices, screen) as harness:
            findings.knowledge = harness.knowledge_state
            findings.vectors = None if harness.knowledge is None else harness.knowledge.vectors
            _check_dependencies(loaded, harness.deps, findings)
            findings.servers = await harness.server_tools()
            findings.warnings += findings.servers.problems
            findings.problems += findings.servers.unknown
            if not findings.properties.at("mcp.file"):
                findings.warnings += _unread_servers(bundle, loaded)
        findings.warnings += _missing_features(await features_for(findings.properties))
    except LooplineError as error:
        findings.add(error)
        _add_unknown_names(loaded, findings)
    if findings.knowledge is not None:
        findings.warnings += findings.knowledge.warnings
    if choices.as_json:
        screen.write_json(_findings_document(findings))
    else:
        for line in _findings_lines(findings):
            screen.print(line)
    for warning in findings.warnings:
        screen.note(Text(f"warning: {escape(warning)}", WARNING))
    for problem in findings.problems:
        screen.error(problem)
    if not findings.problems:
        screen.note(Text(f"✓ {findings.bundle} can be run", style="green"))
    return FAILED if findings.problems else ANSWERED


def _missing_features(backends: Mapping[str, Sequence[Feature]]) -> Iterator[str]:
    """Yield a warning for each required part of isolation that is missing, and for missing libraries."""
    for backend, features in backends.items():
        for feature in features:
            if not feature.ok and feature.required:
                yield f"programs cannot run here ({backend}): {feature.name}: {feature.detail}"
            elif not feature.ok and feature.name == "libraries":
                yield f"exec.python ({backend}): {feature.detail}"


def _unread_servers(bundle: str, loaded: bundles.LoadedBundle) -> Iterator[str]:
    """Yield a warning if an MCP file is in the folder of the command argument, but not in the bundle's folder."""
    folder, file = loaded.folder, Path(bundle) / bundles.MCP_FILE
    if folder is not None and file.is_file() and folder.resolve() != file.parent.resolve():
        yield f"{file} is not read: move it to {folder}, or name it with --prop mcp.file={file.absolute()}"


def _read_descriptors(loaded: bundles.LoadedBundle, findings: Findings) -> None:
    """Read the descriptor modules of the bundle, and add their tools, skills, agents and problems.

    Problems of the workflow class are added too: misspelt attributes, and a `process` that is not `async def`.
    """
    tools: dict[str, toolbox.Tool] = {}
    for module in bundles.descriptor_modules(loaded, "tools"):
        tools |= findings.attempt(
            partial(_load_tools_with_schemas, module, loaded), toolbox.ToolSet()
        )
    findings.tools = toolbox.ToolSet(tools.values())
    for module in bundles.descriptor_modules(loaded, "skills"):
        skills = findings.attempt(partial(_find_skills, module, loaded, findings), Skills())
        findings.skills = Skills(
            (*findings.skills, *skills), (*findings.skills.warnings, *skills.warnings)
        )
    findings.warnings += findings.skills.warnings
    findings.agents = findings.attempt(partial(bundles.bundle_agents, loaded), Agents())
    findings.problems += bundles.build_call_problems(loaded)
    findings.problems += [text for text, _ in bundles.misspelt_attributes(loaded.bundle.workflow)]
    workflow = loaded.bundle.workflow
    if not inspect.iscoroutinefunction(workflow.process):
        findings.problems.append(str(bundles.process_error(workflow, "must be `async def`")))


def _find_skills(module: str, loaded: bundles.LoadedBundle, findings: Findings) -> Skills:
    """Return the skills of the bundle and of the configured folders, with a warning for each unknown tool.

    Tools with a prefix of OTHERS_TOOLS are not checked.
    """
    search = bundles.loop_settings(findings.properties).skills
    places = skill_places(search, os.environ, Path.cwd())
    skills = bundles.load_skills(module, loaded, places=places)
    unknown = tuple(
        f"{tool.location}: this bundle does not have the tool {tool.id!r}"
        for skill in skills
        for tool in skill.tools
        if tool.id not in findings.tools and not tool.id.startswith(OTHERS_TOOLS)
    )
    return Skills(skills.skills, (*skills.warnings, *unknown))


def _add_unknown_names(loaded: bundles.LoadedBundle, findings: Findings) -> None:
    """Add a problem for each unknown tool or skill in the settings of a bundle that cannot be opened.

    Tools of MCP servers are not checked.
    """
    known = toolbox.KnownTools(
        bundles.LOOP_TOOLS | frozenset(findings.tools), frozenset([f"{toolbox.MCP}."])
    )
    if not bundles.names_every_module(loaded, "tools"):
        known |= bundles.ANY_TOOL
    settings = findings.attempt(
        lambda: list(bundles.tool_settings(loaded, findings.properties, findings.agents)),
        list[toolbox.ToolPattern](),
    )
    names = [*known.problems(settings), *bundles.unknown_skills(findings.agents, findings.skills)]
    findings.add(BundleError(*names))


def _load_tools_with_schemas(module: str, loaded: bundles.LoadedBundle) -> toolbox.ToolSet:
    """Load the tools of a descriptor module, and generate their schemas to detect errors in them."""
    tools = bundles.load_tools(module, loaded)
    return tools if tools.specs else toolbox.ToolSet()


def _check_dependencies(loaded: bundles.LoadedBundle, deps: object, findings: Findings) -> None:
    """If `deps` does not fit a tool, add a problem, or only a warning if the bundle does not make dependencies."""
    try:
        toolbox.check_deps(findings.tools.values(), deps)
    except BundleError as error:
        if loaded.bundle.deps is None:
            findings.warnings.append(str(error))
        else:
            findings.add(error)


def _findings_lines(findings: Findings) -> Iterator[Text]:
    """Yield the report: tools, MCP servers, skills, agents, knowledge, memory, output and properties.

    MCP servers, agents, memory and output have a section only if the bundle uses them. Properties are listed for the
    sections that are set. Problems and warnings are left out.
    """
    yield Text(findings.bundle, style="bold")
    tools = findings.tools
    yield _section("tools", quantity(len(tools), "tool") if tools else "none in the bundle")
    yield from map(_tool_line, tools.values())
    if findings.servers.tools:
        yield _section("MCP servers", quantity(len(findings.servers.tools), "tool"))
    yield from map(_tool_line, findings.servers.tools)
    yield _section("skills", quantity(len(list(findings.skills)), "skill"))
    for skill in findings.skills:
        yield Text.assemble(
            f"    {skill.ref}", (f"  {skill.name}: {_first_line(skill.description)}", QUIET)
        )
    if findings.agents:
        yield _section("agents", quantity(len(findings.agents), "agent"))
    for agent in findings.agents.values():
        yield Text.assemble(
            f"    {agent.name}@{agent.digest}", (f"  {_first_line(agent.description)}", QUIET)
        )
    yield from _knowledge_lines(findings)
    if findings.properties.at("react.memsearch", False) is True:
        yield from _memory_lines(findings.properties)
    if findings.output is not None:
        yield _section(
            "output", f"{findings.output.name}({_parameters(findings.output.as_object)})"
        )
    yield _section("properties", "" if findings.properties.written else "none")
    for name, value in findings.properties.flat().items():
        if name.partition(".")[0] in findings.properties.written:
            yield Text.assemble(f"    {name}", (f" = {dumps(_hide_passwords(value))}", QUIET))


def _tool_line(tool: toolbox.Tool) -> Text:
    """Render a tool on one line: its name, parameters, effect, traits and the first line of its description."""
    return Text.assemble(
        f"    {escape(tool.spec.name)}",
        (f"({escape(_signature(tool))})", QUIET),
        f"  {' · '.join([tool.effect, *_traits(tool)])}",
        (f"  {escape(_first_line(tool.spec.description))}", QUIET),
    )


def _traits(tool: toolbox.Tool) -> list[str]:
    """Return the traits that `@tool` sets in addition to the effect, as `needs approval`; empty for MCP tools."""
    if not isinstance(tool, toolbox.BoundTool):
        return []
    function = tool.function
    traits = {
        "needs approval": function.approve is not False,
        "in the background": function.background,
        "run by the client": function.client,
    }
    return [trait for trait, is_so in traits.items() if is_so]


def _knowledge_lines(findings: Findings) -> Iterator[Text]:
    """Yield the section of the knowledge space: its index, vectors, folders, repositories and skipped files.

    Without a knowledge space the section is one line with the reason.
    """
    if findings.knowledge is None:
        yield _section("knowledge", _missing_knowledge(findings.properties))
        return
    yield _section("knowledge", index_line(findings.knowledge, hint=False).plain)
    if findings.vectors is None:
        yield Text(
            "    found by words and static vectors: for a model that finds more in other words, "
            "pip install 'loopline[semantic-light]' and set knowledge.embedder",
            style=QUIET,
        )
    else:
        yield Text.assemble("    ", vectors_line(findings.vectors))
    properties = findings.properties.section("knowledge")
    for root in ROOT_SETTINGS:
        if properties.get(root):
            name = root.removesuffix("_root")
            yield Text.assemble(f"    ks:{name}/", (f"  {properties[root]}", QUIET))
    for name, state in findings.knowledge.repositories.items():
        yield Text.assemble(f"    ks:{name}/", (f"  {escape(state.location)}", QUIET))
    for skipped in findings.knowledge.skipped:
        yield Text(f"    left out: {escape(skipped.path)}: {skipped.reason}", QUIET)


def _missing_knowledge(properties: bundles.Properties) -> str:
    """Return the reason for a missing knowledge space; "none" if the section `knowledge` is not configured."""
    if "knowledge" not in properties.written:
        return "none"
    if properties.at("knowledge.repo") or properties.at("knowledge.repositories"):
        return "not read, because of the problems below"
    return "no repository: set knowledge.repo to a folder or a URL, such as --prop knowledge.repo=."


def _memory_lines(properties: bundles.Properties) -> Iterator[Text]:
    """Yield a line with the embedder of past turns, or, without an embedder, two lines with a hint to install it."""
    embedder = str(properties.at("memory.embedder", "")).strip()
    if embedder:
        yield _section("memory", f"past turns, found by words and by {escape(embedder)}")
        return
    yield _section("memory", "past turns")
    yield Text(
        "    found by words and static vectors: to find more of them in other words, "
        "pip install 'loopline[semantic-light]' and set memory.embedder",
        style=QUIET,
    )


def _section(name: str, summary: str) -> Text:
    return Text.assemble((f"  {name}", "bold"), (f"  {summary}" if summary else "", QUIET))


def _signature(tool: toolbox.Tool) -> str:
    """Render the parameters that a model fills in as `name: type`, with `?` after a name with a default.

    The types are those of the Python function; for other tools, such as MCP tools, those of the schema.
    """
    if not isinstance(tool, toolbox.BoundTool):
        return _parameters(tool.spec.parameters)
    shown = tool.spec.parameters.get("properties")
    function = tool.function.function
    written = inspect.signature(function).parameters.values()
    types = {parameter.name: parameter.annotation for parameter in written}
    with suppress(
        AttributeError, NameError, SyntaxError, TypeError
    ):  # a text in an annotation that cannot be resolved here
        names = {"ToolContext": toolbox.ToolContext, **function.__globals__}
        types |= get_type_hints(function, globalns=names)
    return ", ".join(
        f"{parameter.name}{'' if parameter.default is parameter.empty else '?'}: "
        f"{_type_text(types[parameter.name], function.__module__)}"
        for parameter in written
        if isinstance(shown, dict) and parameter.name in shown
    )


def _type_text(kind: object, module: str) -> str:
    if isinstance(kind, str):
        return kind
    return inspect.formatannotation(kind, module).replace("typing.", "")


def _parameters(schema: JsonObject) -> str:
    """Render the properties of a schema as `name: string, limit?: integer`."""
    properties, required_names = schema_fields(schema)
    return ", ".join(
        f"{name}{'' if name in required_names else '?'}: {_type_name(type_schema)}"
        for name, type_schema in properties.items()
    )


def _type_name(schema: Json) -> str:
    """Render the type of a JSON Schema: `string`, `Literal[…]`, `a|b`, the name of a definition, or else `any`."""
    if not isinstance(schema, dict):
        return "any"
    match schema:
        case {"enum": list(values)}:
            return f"Literal[{', '.join(map(repr, values))}]"
        case {"const": value}:
            return f"Literal[{value!r}]"
        case {"type": str(name)}:
            return name
        case {"anyOf": list(options)}:
            return "|".join(_type_name(option) for option in options)
        case {"$ref": str(ref)}:
            return ref.rpartition("/")[2]
        case _:
            return "any"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _hide_passwords(value: Json) -> Json:
    """Return the value of a property with the URLs in it as `hide_password` returns them."""
    match value:
        case str():
            return hide_password(value)
        case list():
            return [*map(_hide_passwords, value)]
        case dict():
            return {key: _hide_passwords(item) for key, item in value.items()}
        case _:
            return value


def _findings_document(findings: Findings) -> JsonObject:
    """Return the findings as JSON; MCP tools follow the bundle's tools, and the knowledge space is left out."""
    tools: list[Json] = [
        {
            "name": tool.spec.name,
            "effect": tool.effect,
            "traits": [*_traits(tool)],
            "description": tool.spec.description,
            "parameters": tool.spec.parameters,
        }
        for tool in (*findings.tools.values(), *findings.servers.tools)
    ]
    skills: list[Json] = [
        {"ref": skill.ref, "name": skill.name, "description": skill.description}
        for skill in findings.skills
    ]
    agents: list[Json] = [
        {"name": agent.name, "digest": agent.digest, "description": agent.description}
        for agent in findings.agents.values()
    ]
    return {
        "bundle": findings.bundle,
        "ok": not findings.problems,
        "tools": tools,
        "skills": skills,
        "agents": agents,
        "output": structs.asdict(findings.output) if findings.output else None,
        "properties": _hide_passwords({**findings.properties.flat()}),
        "problems": list[Json](findings.problems),
        "warnings": list[Json](findings.warnings),
    }


@command
@parameters.bundle_argument
@click.argument("name", metavar="ALIAS.FUNCTION", help="The tool.")
@click.argument(
    "arguments_json", default="{}", metavar="[JSON]", help="Its arguments, as a JSON object."
)
@parameters.user_option
@parameters.property_options
async def call_tool(
    choices: Choices, screen: Screen, bundle: str, name: str, arguments_json: str
) -> int:
    """Call one tool of a bundle, outside any conversation."""
    loaded = bundles.load(bundle)
    try:
        async with AsyncExitStack() as stack:
            if name.startswith("mcp."):
                harness = await stack.enter_async_context(open_bundle(bundle, choices, screen))
                server_tools = await harness.server_tools()
                tool = _find_tool(name, toolbox.ToolSet(server_tools.tools), server_tools.problems)
                arguments = _parse_arguments(tool, arguments_json)
                deps = harness.deps
            else:
                programs = await open_executions(_properties(loaded, choices), loaded, stack)
                modules = bundles.descriptor_modules(loaded, "tools")
                tools = [*_own_tools(modules, loaded), *await programs(modules[0])]
                tool = _find_tool(name, toolbox.ToolSet(tools))
                arguments = _parse_arguments(tool, arguments_json)
                await bundles.call_load_hook(loaded)
                deps = await bundles.make_deps(loaded, stack)
                toolbox.check_deps([tool], deps)
            call = _call(loaded, choices, screen)
            context = replace(call.context, deps=deps)
            outcome = await tool.run(arguments, structs.replace(call, make_context=lambda: context))
    except toolbox.AskUser as pending:
        screen.error(
            f"{name} asks the user: {escape(pending.question)!r}. Questions can be answered only in a "
            "conversation: use loopline run"
        )
        return FAILED
    except ToolError as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        place = notes.removeprefix(f"\n{error}")  # a note may begin with the same text
        screen.error(f"{name}: {error}{place}")
        return FAILED
    _show_outcome(outcome, choices, screen)
    return FAILED if outcome.failed else ANSWERED


def _own_tools(modules: Sequence[str], loaded: bundles.LoadedBundle) -> Iterable[toolbox.Tool]:
    tools: dict[str, toolbox.Tool] = {}
    for module in modules:
        tools |= bundles.load_tools(module, loaded)
    return tools.values()


def _find_tool(name: str, tools: toolbox.ToolSet, problems: Sequence[str] = ()) -> toolbox.Tool:
    """Return the tool with this name.

    Raises:
        UsageError: the tool needs a conversation (`react.`), or is unknown; the message then includes `problems`.
    """
    if name.startswith("react."):
        raise UsageError(f"{name} needs a conversation: use loopline run, search or read")
    try:
        return tools.find(name)
    except ToolError as error:
        raise UsageError("; ".join([str(error), *problems])) from error


def _parse_arguments(tool: toolbox.Tool, written: str) -> JsonObject:
    """Parse `written` as the arguments of the tool.

    Raises:
        UsageError: `written` is not a JSON object, or the tool refuses the arguments.
    """
    try:
        value = cast("Json", json.loads(written))
    except ValueError as error:
        raise UsageError(f"the arguments are not JSON: {error}: {written!r}") from error
    if not isinstance(value, dict):
        raise UsageError(f"the arguments must be a JSON object such as {{}}, not {written!r}")
    with misuse(ToolError):
        tool.check(value)
    return value


def _properties(loaded: bundles.LoadedBundle, choices: Choices) -> bundles.Properties:
    with misused_properties(choices):
        return loaded.properties(parse_properties(choices))


def _call(loaded: bundles.LoadedBundle, choices: Choices, screen: Screen) -> toolbox.ToolInvocation:
    """Make a call outside a conversation that prints its progress and events."""
    clock = SystemClock()
    timeline = Timeline()
    scratchpad: MutableMapping[str, Any] = {}

    def emit(event: CustomEvent, durable: bool) -> toolbox.Emission:
        del durable  # the event cannot be stored without a log
        screen.note(f"{event.name} {escape(dumps(event.data))}")
        return toolbox.Emission()

    context = toolbox.ToolContext(
        call_id="c1",
        idempotency_key=f"{clock.new_id()}:c1",
        conversation="",
        turn_id=TURN_ID,
        user=choices.user_name,
        properties=_properties(loaded, choices).flat(),
        scratchpad=scratchpad,
        on_progress=screen.note,
        on_emit=emit,
    )
    return toolbox.ToolInvocation(
        make_context=lambda: context,
        timeline=timeline,
        view=View(Native()),
        reader=Reader(conversation=ConversationView(timeline)),
        moment=Moment(clock.now(), TURN_ID),
    )


def _show_outcome(outcome: toolbox.Outcome, choices: Choices, screen: Screen) -> None:
    """Print the text of a result to stdout, and its sources and changed files to stderr.

    With `--json` one object on stdout has the text, the sources, the paths of the files and the artifact.
    """
    if choices.as_json:
        sources: list[Json] = [
            {"title": source.title, "url": source.url} for source in outcome.sources
        ]
        files: list[Json] = [str(change.path) for change in outcome.files]
        screen.write_json(
            {"text": outcome.text, "sources": sources, "files": files, "artifact": outcome.artifact}
        )
        return
    screen.write_escaped(outcome.text)
    for source in outcome.sources:
        screen.note(Text(f"source: {escape(source.title or source.url)} — {escape(source.url)}"))
    for change in outcome.files:
        size = "removed" if change.data is None else f"{len(change.data):,} bytes"
        screen.note(f"file: {escape(str(change.path))} ({size}), stored only in a conversation")


@command
@click.argument("name", metavar="NAME", help="The name of the new bundle.")
@parameters.with_default(
    "folder",
    "--in",
    type=parameters.PATH,
    default=Path(),
    metavar="FOLDER",
    help="Where to create its folder.",
)
@parameters.flag(
    "package",
    "--package",
    help="A package to install, with descriptors and a skill, instead of one module.",
)
async def new(choices: Choices, screen: Screen, name: str, folder: Path, *, package: bool) -> int:
    """Create a bundle: one module with its test."""
    del choices
    project = bundles.create(name, folder, bundles.Installation.now(), package=package)
    for file in sorted(path for path in project.rglob("*") if path.is_file()):
        screen.note(str(file))
    screen.note(Text(f"✓ {project} is a bundle; next:", style="green"))
    invocation = Invocation.now()
    alias = "text" if package else name
    created = str(project) if project.parts[:-1] else f"./{project}"
    has_pytest = find_spec("pytest") is not None
    test = [*invocation.python, "-m", "pytest"] if has_pytest else [*invocation.program, "check"]
    for words in (
        [*invocation.program, "run", created, QUESTION],
        [*invocation.program, "tool", created, f"{alias}.statistics", EXAMPLE_ARGUMENTS],
        [*test, created],
    ):
        screen.note_command(shlex.join(words))
    return ANSWERED


@command
@parameters.json_option
async def list_bundles(choices: Choices, screen: Screen) -> int:
    """List the bundles that can be opened by name."""
    entries = bundles.available()
    if choices.as_json:
        screen.write_json([{"name": entry.name, "place": entry.location} for entry in entries])
    elif entries:
        table = Table.grid(padding=(0, 2))
        lines: list[str] = []
        table.add_column(style="bold", no_wrap=True)
        table.add_column(style=QUIET, overflow="fold")
        for entry in entries:
            cells = (escape(entry.name), escape(entry.location))
            table.add_row(*cells)
            lines.append("\t".join(cells))
        screen.print_layout(table, "\n".join(lines))
    else:
        screen.note(
            Text("no bundle is installed or in ./bundles: create one with loopline new NAME")
        )
    return ANSWERED
