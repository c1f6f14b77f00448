"""The class Bundle: an id, the parts of the loop, and the workflow that runs the turns."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, cast

from typing_extensions import TypeForm, TypeVar

from loopline import names, react
from loopline.bundle.prepared_run import LoopParts
from loopline.bundle.workflow import BaseWorkflow
from loopline.crew import Agent, GraphOptions, Quality
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, Model, ModelSettings
from loopline.timeline import TurnResult
from loopline.tools import ToolFunction

T_co = TypeVar("T_co", covariant=True, default=None)
ModelChain = str | Model | Sequence[str | Model]
"""A model string such as `openai:gpt-5`, a model, or several: the first that answers is used."""
LoadHook = Callable[[], Awaitable[None] | None]
PreRunHook = Callable[[BaseWorkflow[Any], react.TurnPayload], Awaitable[None] | None]
PostRunHook = Callable[
    [BaseWorkflow[Any], react.TurnPayload, TurnResult[Any]], Awaitable[None] | None
]


_KINDS: Mapping[str, tuple[Any, str]] = {
    "id": (str, "a str"),
    "instructions": (str, "a str"),
    "knowledge": (Mapping, "a dict"),
    "quality": (Quality, "a Quality"),
    "graph": (GraphOptions, "GraphOptions"),
    "configuration": (Mapping, "a dict"),
    "settings": (ModelSettings, "ModelSettings"),
    "deps": (Callable, "a function without parameters"),
    "version": (str, "a str"),
    "approvals": (react.ApprovalLimits, "ApprovalLimits"),
    "limits": (Mapping, "a dict such as {'max_iterations': 8}"),
    "preset": ((str, react.Preset), "the name of a preset, or a Preset"),
    "knowledge_space_fn": (Callable, "a function"),
    "knowledge_read_fn": (Callable, "a function"),
    "on_bundle_load": (Callable, "a function"),
    "pre_run_hook": (Callable, "a function"),
    "post_run_hook": (Callable, "a function"),
}
_ITEM_KINDS: Mapping[str, tuple[Any, str]] = {
    "agents": (Agent, "an Agent"),
    "approve": (str, "the name of a tool"),
    "round_hooks": (Callable, "a function"),
    "middleware": (Callable, "a function"),
}
_LISTS = {
    "tools": "functions",
    "skills": "folders",
    "agents": "agents",
    "approve": "names or patterns of tools",
    "guards": "guards",
    "round_hooks": "functions",
    "middleware": "functions",
}


def _check_workflow(workflow: object) -> None:
    """Raise a BundleError with the author's file and line if the value is not a subclass of `BaseWorkflow`."""
    if not isinstance(workflow, type) or not issubclass(
        cast("type[object]", workflow), BaseWorkflow
    ):
        raise names.author_error(
            f"Bundle(workflow=…) must be a subclass of BaseWorkflow, not {names.describe(workflow)}"
        )


def _check_tool(function: object) -> None:
    """Raise a BundleError if the value is not a `ToolFunction` or a Python function, which may be decorated."""
    described = names.describe(function)
    is_function = isinstance(function, ToolFunction) or isinstance(
        inspect.unwrap(cast("Callable[..., Any]", function)), FunctionType
    )
    if not is_function:
        raise names.author_error(
            f"an item of Bundle(tools=…) must be a function, not {described}: "
            "write its name, without a call"
        )


_HOOKS = {
    "on_bundle_load": (),
    "pre_run_hook": ("workflow", "payload"),
    "post_run_hook": ("workflow", "payload", "result"),
}


def _check_hook(name: str, hook: Callable[..., object] | None, parameters: Sequence[str]) -> None:
    """Raise a BundleError if the hook cannot be called with these parameters.

    None is accepted, and so is a built-in function without a signature.
    """
    if hook is None:
        return
    try:
        inspect.signature(hook).bind(*parameters)
    except TypeError as error:
        called = f"is called with ({', '.join(parameters)})"
        raise names.author_error(f"Bundle({name}=…) {called}: {error}") from None
    except ValueError:  # a function of C has no signature
        return


def _check_model(model: object) -> None:
    """Raise a BundleError if `model` is not None, a text, dict or sequence, and lacks `stream` and `request`."""
    is_model = any(hasattr(model, name) for name in ("stream", "request"))
    if model is None or is_model or isinstance(model, str | Mapping | Sequence):
        return
    raise names.author_error(
        "Bundle(model=…) must be a model string such as openai:gpt-5, a model, a list of them or a dict by role, not "
        f"{names.describe(model)}"
    )


def _check_loop(limits: react.Limits | None, preset: str | react.Preset) -> None:
    """Raise a BundleError if the preset does not exist, or if a limit is unknown or out of range."""
    try:
        react.named_preset(preset)
        if limits is not None:
            react.check_limits(limits)
    except LooplineError as error:
        raise names.author_error(f"Bundle(…): {error}") from None


@names.checks_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle(LoopParts, Generic[T_co]):
    """A bundle. A module exposes it with the name `bundle`.

    Attributes:
        id: the id of the bundle.
        workflow: the class that runs the turns. All other parts are also the defaults of its `build_react`.
        model: the model if neither the caller nor `LOOPLINE_MODEL` names one: a model string, a model, several of these, or
            a dict from roles to them.
        preset: the preset of the loop, or its name.
        limits: limits of each turn, such as `{"max_iterations": 8}`. They override those of the preset, and are overridden
            by the properties and by the caller.
        guards: checks of every tool call, in order. They are added to those of the workflow class.
        round_hooks: functions that run between rounds. They are added to those of the workflow class.
        middleware: functions that wrap the run of the loop. They are added to those of the workflow class.
        knowledge_space_fn: a search that replaces the search of the bundle's knowledge space.
        knowledge_read_fn: a function that replaces reading from the bundle's knowledge space.
        on_bundle_load: a function without parameters that is called once in each process, before the first turn.
        pre_run_hook: a function of the workflow and the payload that is called before each turn.
        post_run_hook: a function of the workflow, the payload and the result that is called after each turn that is not
            paused. Hooks may be `async def`; they have the parameters of the methods of `BaseWorkflow` with the same names.
        instructions: the instructions of the loop. They replace those of the workflow class.
        tools: functions, plain or decorated with `@tool`. A plain function has the effect `exclusive`. Their ids are
            `<id>.<function>`. They are added to the tools of the workflow class and its descriptors.
        skills: folders relative to the folder of the bundle, each with a `SKILL.md` or with skills below it. They are
            added to those of the workflow class and its descriptors.
        knowledge: the section `knowledge` of the configuration. With it the bundle has a knowledge space.
        agents: agents that the loop may run. The `.md` files in the folder `agents` are added.
        approve: names or patterns of tools, such as `shop.*`, whose calls wait until the user has approved them. A tool
            can also ask for approval itself, with `@tool(approve=True)`.
        approvals: which rules users may grant when they approve a call.
        quality: the hooks around the runs of agents.
        graph: the options of graphs. With them the model may plan a goal and run it as a graph of steps.
        configuration: the nested default values of the properties.
        settings: the settings of requests for decisions and answers, such as `ModelSettings(temperature=0.2)`. They override
            those of the model.
        deps: a function that makes the dependencies if `Harness.open` is called without `deps`. It has no parameters, may
            be async, and returns the dependencies or an async context manager of them.
        output_type: the type of the answers. A turn or its workflow may ask for another type.
        version: the name of this release, by default a digest of the files of the bundle: those of its package, or its file
            and the modules below the folder of that file that it imports. The store orders versions by the time when each
            first opened the store.
        module: the name of the module that created the bundle.
        location: the file and line that created the bundle, for errors; empty if unknown.
    """

    workflow: type[BaseWorkflow[object]] = BaseWorkflow
    model: ModelChain | Mapping[str, ModelChain] | None = None
    on_bundle_load: LoadHook | None = None
    pre_run_hook: PreRunHook | None = None
    post_run_hook: PostRunHook | None = None
    tools: Sequence[Callable[..., Any]] = ()
    skills: Sequence[str | Path] = ()
    knowledge: Mapping[str, Json] | None = None
    agents: Sequence[Agent] = ()
    quality: Quality | None = None
    configuration: Mapping[str, Json] = field(default_factory=dict[str, Json])
    settings: ModelSettings | None = None
    deps: Callable[[], object] | None = field(default=None, repr=False)
    output_type: TypeForm[T_co] = field(default=cast("TypeForm[T_co]", None))
    version: str = ""
    approvals: react.ApprovalLimits = react.DEFAULT_APPROVALS
    module: str = field(init=False, repr=False, compare=False)
    location: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values, and remember the module.

        Raises:
            BundleError: a value has the wrong type; the message names the file and line.
        """
        object.__setattr__(self, "module", names.caller_module())
        object.__setattr__(self, "location", names.caller_location())
        for name, (kinds, expected) in _KINDS.items():
            value: object = getattr(self, name)
            if value is not None:
                names.check_type(value, kinds, f"Bundle({name}=…)", expected)
        for name, expected in _LISTS.items():
            names.check_list(getattr(self, name), f"Bundle({name}=…)", expected)
        _check_workflow(self.workflow)
        self._check_items()
        for name, parameters in _HOOKS.items():
            _check_hook(name, getattr(self, name), parameters)
        _check_model(self.model)
        _check_loop(self.limits, self.preset)

    def _check_items(self) -> None:
        """Raise a BundleError for the first tool, guard, agent, pattern, hook or middleware with a wrong type."""
        for function in self.tools:
            _check_tool(function)
        for guard in self.guards:
            if missing := [f"{name}()" for name in ("before", "after") if not hasattr(guard, name)]:
                described = f"{names.describe(guard)}, which has no {' and no '.join(missing)}"
                raise names.author_error(
                    f"an item of Bundle(guards=…) must be a guard such as ask_before([…]), not {described}"
                )
        for name, (kinds, expected) in _ITEM_KINDS.items():
            for item in getattr(self, name):
                names.check_type(item, kinds, f"an item of Bundle({name}=…)", expected)

    @property
    def defaults(self) -> Mapping[str, Json]:
        """The configuration. In its section `knowledge`, keys of the workflow class and then of the bundle win."""
        sections = (self.workflow.knowledge_config, self.knowledge)
        written = [section for section in sections if section is not None]
        if not written:
            return self.configuration
        configured = self.configuration.get("knowledge")
        merged: JsonObject = dict(configured) if isinstance(configured, dict) else {}
        for section in written:
            merged |= section
        return {**self.configuration, "knowledge": merged}
