"""The options of the loop, their ranges, and the presets, which are named sets of options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from typing import Any, Final, Literal, TypedDict, cast, get_args
from zoneinfo import ZoneInfo

from loopline.errors import LooplineError
from loopline.events import DialectName
from loopline.models import (
    UNSET,
    Json,
    JsonObject,
    Model,
    ModelSettings,
    as_settings,
    restore_settings,
)
from loopline.names import nearest_hint
from loopline.prompt import (
    KEEP_INTACT_TURNS,
    KEEP_TURNS,
    MIN_ROUNDS,
    OFFSET_ROUNDS,
    DecisionProtocol,
    protocol,
)
from loopline.react.environment import (
    Parse,
    parse_duration,
    parse_switch,
    read_variables,
    whole_number,
)
from loopline.timeline import RESULT_CHARACTERS, LimitValue
from loopline.tools import EDITABLE_TAIL_TOKENS

RESULT_BYTES = 2_000_000
"""The most UTF-8 bytes of a result that are stored by default."""

ProtocolChoice = Literal["auto", "native", "json", "tagged", "thought_action"]
TextProtocol = Literal["auto", "json", "tagged", "thought_action"]
AnswerMode = Literal["direct", "synthesize"]
OnExhausted = Literal["force", "summary", "partial"]
Effort = Literal["low", "medium", "high", "max"]
ChainUse = Literal["first", "next"]
UnknownEffect = Literal["exclusive", "read"]
WorkspaceStart = Literal["off", "latest", "empty"]


class Limits(TypedDict, total=False):
    """Loop options as keywords. An option that is left out has the value of the preset.

    Ends of a turn: `max_iterations` is the most decisions of a turn. With None the number is limited only by
    `deadline_seconds` and `max_tokens`, which must be set then. With `early_stop` False an answer is held until the last
    decision; `min_rounds` holds it until that many decisions. `deadline_seconds` is the running time of the turn.
    `max_tokens` and `max_cost`, in US dollars, limit all requests of the turn and its child runs; a request that would
    exceed them is not sent. None is unlimited. `on_exhausted` chooses the answer when a limit is reached. `max_depth` is
    the depth to which child runs may be nested; with 0 there are no child runs.

    Repeated requests: `repairs` is the number of malformed or empty replies in a row that the model may write again, None
    for as many as there are rounds. A reply with more than `max_calls_per_reply` calls counts as malformed. A reply that
    was cut off is continued at most `output_escalations` times. A request that failed temporarily is sent again at most
    `model_retries` times.

    Round hooks: after `stagnation_rounds` rounds with the same calls, at least 2, the turn ends; after
    `cycle_warning_rounds` the model is warned. After every `self_check_rounds` rounds with calls the model checks its
    progress. 0 turns each of them off. `failure_reflection` asks for another way after a round with a failed call.
    `completion_check` makes the model check one short answer after three rounds with calls.

    Models: `protocol` "auto" uses the model's native calls, or `text_protocol` if it has none; "auto" there is "json" if
    the model has a JSON mode, and otherwise "tagged". With `chain` "next", a model that refuses is replaced by the next
    model for the rest of the turn, and a model that is unavailable is replaced for one request; with "first" only the
    first model is used. `reasoning_effort` is passed on to models that accept it; with None they use their default.
    `settings` are those of the requests for decisions and answers, such as `ModelSettings(temperature=0.2)`; those of a
    later layer override the same ones of an earlier layer. `answer_mode` "synthesize" writes the answer with a separate
    request. `dialect` is recorded for the server that sends
    the turn's events.

    Tools: at most `parallel_tools` calls run at once, each for at most `tool_timeout_seconds`, or without a limit if None.
    A tool without a declared effect has the effect `unknown_effect`: "exclusive" runs alone, "read" runs concurrently; it
    is never started twice. With `select_tools` a model first selects from more than 12 tools; with None, tools of MCP
    servers are then only offered after `react.request_tools`; with False all tools are offered. At most `result_bytes` of
    a result are stored, and at most `result_characters` are shown. With `workspace` "latest" the model has tools for
    files, and a turn starts with the `files/` of the turn before; with "empty" it starts without files; with "off" there
    are no tools for files. With `plans` the model has `react.plan`, and the other tools of the loop; with None it has them if
    the workflow calls `build_react`, or if the bundle has knowledge, skills or files.

    Context: `cache_ttl_seconds` is the time for which the provider caches an unused prompt; old turns are clipped after
    that, and 0 turns this off. The newest `keep_recent_turns` are not clipped, and the newest `keep_recent_intact_turns`
    keep the results of their reads. One cache point is `cache_point_offset_rounds` before the tail, from
    `cache_point_min_rounds` rounds on. `react.hide` can hide the last `editable_tail_size_in_tokens` of the prompt.
    `summary_hint` chooses the instructions for summaries; None chooses them by the summarized range. `time_zone` is the
    user's, such as "Europe/Berlin".
    """

    max_iterations: int | None
    early_stop: bool
    min_rounds: int
    deadline_seconds: float | None
    max_tokens: int | None
    max_cost: float | None
    on_exhausted: OnExhausted
    repairs: int | None
    output_escalations: int
    model_retries: int
    max_calls_per_reply: int
    stagnation_rounds: int
    cycle_warning_rounds: int
    self_check_rounds: int
    failure_reflection: bool
    completion_check: bool
    max_depth: int
    protocol: ProtocolChoice
    text_protocol: TextProtocol
    parallel_tools: int
    tool_timeout_seconds: float | None
    unknown_effect: UnknownEffect
    select_tools: bool | None
    workspace: WorkspaceStart
    plans: bool | None
    answer_mode: AnswerMode
    chain: ChainUse
    reasoning_effort: Effort | None
    settings: ModelSettings
    dialect: DialectName
    cache_ttl_seconds: int
    keep_recent_turns: int
    keep_recent_intact_turns: int
    cache_point_min_rounds: int
    cache_point_offset_rounds: int
    editable_tail_size_in_tokens: int
    result_bytes: int
    result_characters: int
    summary_hint: str | None
    time_zone: str | None


Check = Callable[[object], str]
"""Returns the description of valid values, for an error message; an empty text if the value is valid."""


def _integer(minimum: int) -> Check:
    def check(value: object) -> str:
        is_valid = type(value) is int and value >= minimum
        return "" if is_valid else f"{minimum} or more, a whole number"

    return check


def _zero_or(minimum: int) -> Check:
    """Return a check of a value, which must be 0 or a whole number of at least `minimum`."""
    check = _integer(minimum)

    def check_positive(value: object) -> str:
        expected = "" if type(value) is int and value == 0 else check(value)
        return f"0, or {expected}" if expected else ""

    return check_positive


def _or_none(check: Check) -> Check:
    def check_optional(value: object) -> str:
        expected = "" if value is None else check(value)
        return f"{expected}, or None" if expected else ""

    return check_optional


def _positive(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "a number above 0"
    return "" if isfinite(value) and value > 0 else "a number above 0"


def _one_of(choice: object) -> Check:
    names: tuple[str, ...] = get_args(choice)
    return lambda value: "" if value in names else f"one of {', '.join(names)}"


def _switch(value: object) -> str:
    return "" if isinstance(value, bool) else "True or False"


def _string(value: object) -> str:
    return "" if isinstance(value, str) else "a word"


def _zone(value: object) -> str:
    try:
        ZoneInfo(value if isinstance(value, str) else "")
    except (KeyError, ValueError, OSError):
        return "the name of a time zone, such as Europe/Berlin"
    return ""


def _rule(group: str, check: Check) -> Mapping[str, object]:
    """Return the metadata of an option: the group in which it is listed, and the check of its values."""
    return {"group": group, "check": check}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """All options of the loop, which `Limits` documents; the defaults are the preset `bare`."""

    max_iterations: int | None = field(default=15, metadata=_rule("limits", _or_none(_integer(1))))
    early_stop: bool = field(default=True, metadata=_rule("limits", _switch))
    min_rounds: int = field(default=1, metadata=_rule("limits", _integer(1)))
    deadline_seconds: float | None = field(
        default=None, metadata=_rule("limits", _or_none(_positive))
    )
    max_tokens: int | None = field(default=None, metadata=_rule("limits", _or_none(_integer(1))))
    max_cost: float | None = field(default=None, metadata=_rule("limits", _or_none(_positive)))
    on_exhausted: OnExhausted = field(
        default="force", metadata=_rule("limits", _one_of(OnExhausted))
    )
    max_depth: int = field(default=2, metadata=_rule("limits", _integer(0)))
    protocol: ProtocolChoice = field(
        default="auto", metadata=_rule("protocol", _one_of(ProtocolChoice))
    )
    text_protocol: TextProtocol = field(
        default="auto", metadata=_rule("protocol", _one_of(TextProtocol))
    )
    reasoning_effort: Effort | None = field(
        default=None, metadata=_rule("protocol", _or_none(_one_of(Effort)))
    )
    chain: ChainUse = field(default="next", metadata=_rule("chain", _one_of(ChainUse)))
    repairs: int | None = field(default=1, metadata=_rule("repair", _or_none(_integer(0))))
    output_escalations: int = field(default=2, metadata=_rule("repair", _integer(0)))
    model_retries: int = field(default=3, metadata=_rule("repair", _integer(0)))
    max_calls_per_reply: int = field(default=100, metadata=_rule("repair", _integer(1)))
    parallel_tools: int = field(default=10, metadata=_rule("schedule", _integer(1)))
    tool_timeout_seconds: float | None = field(
        default=None, metadata=_rule("schedule", _or_none(_positive))
    )
    unknown_effect: UnknownEffect = field(
        default="exclusive", metadata=_rule("schedule", _one_of(UnknownEffect))
    )
    result_bytes: int = field(default=RESULT_BYTES, metadata=_rule("schedule", _integer(10_000)))
    answer_mode: AnswerMode = field(default="direct", metadata=_rule("answer", _one_of(AnswerMode)))
    result_characters: int = field(
        default=RESULT_CHARACTERS, metadata=_rule("view", _integer(1_000))
    )
    summary_hint: str | None = field(default=None, metadata=_rule("view", _or_none(_string)))
    time_zone: str | None = field(default=None, metadata=_rule("view", _or_none(_zone)))
    keep_recent_turns: int = field(default=KEEP_TURNS, metadata=_rule("view", _integer(1)))
    keep_recent_intact_turns: int = field(
        default=KEEP_INTACT_TURNS, metadata=_rule("view", _integer(1))
    )
    cache_ttl_seconds: int = field(default=300, metadata=_rule("view", _integer(0)))
    cache_point_min_rounds: int = field(default=MIN_ROUNDS, metadata=_rule("view", _integer(1)))
    cache_point_offset_rounds: int = field(
        default=OFFSET_ROUNDS, metadata=_rule("view", _integer(0))
    )
    editable_tail_size_in_tokens: int = field(
        default=EDITABLE_TAIL_TOKENS, metadata=_rule("view", _integer(0))
    )
    select_tools: bool | None = field(default=None, metadata=_rule("selection", _or_none(_switch)))
    workspace: WorkspaceStart = field(
        default="off", metadata=_rule("selection", _one_of(WorkspaceStart))
    )
    plans: bool | None = field(default=None, metadata=_rule("selection", _or_none(_switch)))
    stagnation_rounds: int = field(default=0, metadata=_rule("extensions", _zero_or(2)))
    cycle_warning_rounds: int = field(default=0, metadata=_rule("extensions", _zero_or(2)))
    failure_reflection: bool = field(default=False, metadata=_rule("extensions", _switch))
    self_check_rounds: int = field(default=0, metadata=_rule("extensions", _integer(0)))
    completion_check: bool = field(default=False, metadata=_rule("extensions", _switch))
    dialect: DialectName = field(default="plain", metadata=_rule("dialect", _one_of(DialectName)))
    settings: ModelSettings = UNSET

    def with_limits(self, *limits: Limits) -> LoopOptions:
        """Return these options with the limits applied; later limits replace earlier ones.

        Raises:
            LooplineError: a limit is unknown or out of its range.
        """
        merged = merge_limits(*map(check_limits, limits))
        settings = merged.pop("settings", UNSET)
        options = _replace_options(self, **merged) if merged else self
        if settings == UNSET:
            return options
        return replace(options, settings=self.settings.override(settings))

    def validated(self) -> LoopOptions:
        """Return these options after a check that they are consistent.

        Raises:
            LooplineError: `max_iterations` is None, and a limit that it needs is missing or `early_stop` is False.
        """
        if self.max_iterations is None:
            missing = [
                name for name in ("deadline_seconds", "max_tokens") if self.values[name] is None
            ]
            if missing:
                raise LooplineError(f"without max_iterations a turn needs {' and '.join(missing)}")
            if not self.early_stop:
                raise LooplineError(
                    "early_stop=False needs max_iterations, the number of rounds that are made"
                )
        return self

    @property
    def values(self) -> dict[str, LimitValue]:
        """All options by name, without the settings of the model."""
        return {name: getattr(self, name) for name in _CHECKS}

    def differences(self, base: LoopOptions) -> dict[str, LimitValue]:
        """Return the options that differ from those of `base`, by name."""
        if self is base:
            return {}
        values = zip(_CHECKS, _OPTIONS(self), _OPTIONS(base), strict=True)
        return {name: value for name, value, usual in values if value != usual}

    @property
    def synthesizes(self) -> bool:
        """Whether the answer is written by a separate request."""
        return self.answer_mode == "synthesize"

    @property
    def forces_answer(self) -> bool:
        """Whether an answer is requested when all rounds are used up."""
        return self.on_exhausted == "force" or self.synthesizes


@lru_cache(64, typed=True)
def _replace_options(options: LoopOptions, **limits: LimitValue) -> LoopOptions:
    """Return the options with these limits, which have no `settings`; cached, because the turns of a bundle usually have the same limits."""
    return replace(options, **cast("dict[str, Any]", limits))


_GROUPED = [option for option in fields(LoopOptions) if option.metadata]
_CHECKS: Mapping[str, Check] = {option.name: option.metadata["check"] for option in _GROUPED}
_OPTIONS = attrgetter(*_CHECKS)
DEFAULT_OPTIONS = LoopOptions()
GROUPS: Mapping[str, Sequence[str]] = {
    option.metadata["group"]: [
        member.name for member in _GROUPED if member.metadata["group"] == option.metadata["group"]
    ]
    for option in _GROUPED
}
"""The names of the options in each group."""


def check_limits(limits: Limits) -> Limits:
    """Return the limits after a check of their names and ranges.

    Raises:
        LooplineError: a limit is unknown or out of its range.
    """
    for name, value in limits.items():
        if name == "settings":
            as_settings(value)
            continue
        if name not in _CHECKS:
            if name in ModelSettings.__annotations__:
                raise LooplineError(
                    f"{name!r} is a setting of the model: write settings=ModelSettings({name}=…)"
                )
            raise LooplineError(f"no limit {name!r}, {nearest_hint(name, Limits.__annotations__)}")
        expected = _CHECKS[name](value)
        if expected:
            raise LooplineError(f"{name} must be {expected}, not {value!r}")
    return limits


_EFFORT: Final = "reasoning_effort"


def merge_limits(*layers: Limits) -> Limits:
    """Return the limits of all layers; later ones replace earlier ones, and settings replace the same settings.

    A layer with the limit `reasoning_effort` also replaces the effort in the settings of earlier layers.
    """
    merged: Limits = {}
    settings = UNSET
    for layer in layers:
        merged.update(layer)
        if settings.reasoning_effort is not None and layer.get(_EFFORT) is not None:
            settings = settings.without([_EFFORT])
        if "settings" in layer:
            settings = settings.override(settings_of(layer))
    return merged if settings is UNSET else {**merged, "settings": settings}


def settings_of(limits: Limits) -> ModelSettings:
    """Return the settings of the model among the limits; without them, settings of which none is set.

    Raises:
        LooplineError: the settings are of another type, or not valid.
    """
    return as_settings(limits["settings"]) if "settings" in limits else UNSET


def stored_limits(limits: Limits) -> dict[str, LimitValue]:
    """Return the limits in the form in which the prompt of a turn stores them, without the settings of the model."""
    return {name: cast("LimitValue", value) for name, value in limits.items() if name != "settings"}


def stored_settings(limits: Limits) -> JsonObject:
    """Return the settings among the limits in the form in which the prompt of a turn stores them; empty without settings.

    Raises:
        LooplineError: a header may not be stored, because its name says that it has a credential.
    """
    if "settings" not in limits:
        return {}
    settings = settings_of(limits)
    settings.check_storable()
    return settings.stored()


def restore_limits(
    stored: Mapping[str, LimitValue], settings: Mapping[str, Json] | None = None
) -> Limits:
    """Return the limits and settings that the prompt of a turn stores, without names that this version does not know.

    Raises:
        LooplineError: a stored limit is out of its range.
    """
    limits = {name: value for name, value in stored.items() if name in _CHECKS}
    restored = check_limits(cast("Limits", limits))
    return {**restored, "settings": restore_settings(settings)} if settings else restored


def choose_protocol(options: LoopOptions, model: Model) -> DecisionProtocol:
    """Return the requested protocol if the model supports it, otherwise the best protocol that the model supports."""
    capabilities = model.capabilities
    requested = options.protocol
    text = options.text_protocol
    if capabilities.write_decisions and requested != "auto" and requested != "native":
        return protocol(requested)
    if capabilities.tool_call:
        return protocol("native")
    if text != "auto":
        return protocol(text)
    return protocol("json" if capabilities.json_mode else "tagged")


PresetName = Literal["bare", "kdcube", "fim", "nadoo", "chatcli", "beakr"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named set of loop options; `variables` has the environment variables that override some, with their parsers."""

    name: str
    about: str
    options: LoopOptions = field(default_factory=LoopOptions)
    variables: Mapping[str, Parse[Limits]] = field(
        default_factory=dict[str, Parse[Limits]], hash=False
    )

    def environment(self, environment: Mapping[str, str]) -> Limits:
        """Return the limits that environment variables set.

        Raises:
            LooplineError: a variable has an invalid text; the message names the variable and the valid texts.
        """
        limits: Limits = {}
        if not self.variables:  # as in most presets, and once a turn
            return limits
        for variable_limits in read_variables(environment, self.variables).values():
            limits.update(variable_limits)
        return limits


def presets_diff(first: Preset, second: Preset) -> dict[str, tuple[LimitValue, LimitValue]]:
    """Return the options in which two presets differ, by name."""
    second_values = second.options.values
    differences = first.options.differences(second.options)
    return {name: (value, second_values[name]) for name, value in differences.items()}


def named_preset(choice: str | Preset) -> Preset:
    """Return the preset of that name, or the preset itself.

    Raises:
        LooplineError: the name is unknown; the message names the nearest preset, or lists them.
    """
    if isinstance(choice, Preset):
        return choice
    if choice not in PRESETS:
        raise LooplineError(f"no preset {choice!r}, {nearest_hint(choice, PRESETS)}")
    return PRESETS[choice]


def _parse_parallel(text: str) -> Limits:
    return {} if parse_switch(text) else {"parallel_tools": 1, "max_depth": 0}


_ALL = (
    Preset(name="bare", about="the engine's own defaults"),
    Preset(
        name="kdcube",
        about="channels in one stream, one call after the other",
        options=LoopOptions(protocol="tagged", chain="first", parallel_tools=1, dialect="kdcube"),
    ),
    Preset(
        name="fim",
        about="a loop of calls, then a request of its own that writes the answer",
        options=LoopOptions(
            max_iterations=50,
            chain="first",
            text_protocol="json",
            on_exhausted="summary",
            answer_mode="synthesize",
            unknown_effect="read",
            select_tools=True,
            cycle_warning_rounds=3,
            completion_check=True,
            result_characters=50_000,
            summary_hint="react_iteration",
            dialect="fim",
        ),
    ),
    Preset(
        name="nadoo",
        about="thought, action, observation: one tool at a time",
        options=LoopOptions(
            max_iterations=10,
            protocol="thought_action",
            chain="first",
            parallel_tools=1,
            dialect="nadoo",
        ),
    ),
    Preset(
        name="chatcli",
        about="a worker with 30 rounds and 10 minutes, whose work is kept at the limit",
        options=LoopOptions(
            max_iterations=30,
            chain="first",
            deadline_seconds=600.0,
            on_exhausted="partial",
            text_protocol="tagged",
            failure_reflection=True,
            result_characters=20_000,
            dialect="chatcli",
        ),
        variables={
            "CHATCLI_AGENT_WORKER_MAX_TURNS": lambda text: {
                "max_iterations": whole_number(1)(text)
            },
            "CHATCLI_AGENT_WORKER_TIMEOUT": lambda text: {"deadline_seconds": parse_duration(text)},
            "CHATCLI_AGENT_PARALLEL_MODE": _parse_parallel,
        },
    ),
    Preset(
        name="beakr",
        about="as many rounds as 200,000 tokens and 10 minutes allow",
        options=LoopOptions(
            max_iterations=None,
            max_tokens=200_000,
            deadline_seconds=600.0,
            protocol="native",
            dialect="beakr",
        ),
    ),
)
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL}

NADOO_MODES = (
    "standard",
    "chain_of_thought",
    "function_calling",
    "react",
    "reflection",
    "tree_of_thoughts",
)
"""The values that Nadoo's `agent_mode` may have; a loop is "react"."""


def check_mode(mode: str) -> None:
    """Check that an `agent_mode` of Nadoo selects this loop: it is "react" or empty.

    Raises:
        LooplineError: it is another mode, or unknown.
    """
    if mode in ("", "react"):
        return
    if mode in NADOO_MODES:
        raise LooplineError(f"agent_mode {mode!r} is not a loop: only 'react' runs here")
    raise LooplineError(f"no agent_mode {mode!r}: only 'react' runs here")
