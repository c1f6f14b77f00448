"""The settings of requests to a model: their layers, the form in which they are stored, and their check against a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, Literal, cast, get_args

from loopline.errors import LooplineError, ModelRequestError
from loopline.models.json import Json, JsonObject, dumps
from loopline.names import checks_keywords, nearest_hint

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Unsupported = Literal["error", "drop"]
"""The treatment of a setting that a model does not support: an error, or a request without it, which is recorded."""

STRUCTURE = frozenset(
    {"model", "messages", "input", "system", "instructions", "tools", "stream", "store"}
)
"""Fields of requests that `extra_body` may not replace, because the loop depends on them."""
OWN_HEADERS = frozenset(
    {
        *("accept", "anthropic-version", "api-key", "authorization", "connection"),
        *("content-length", "content-type", "cookie", "host", "proxy-authorization"),
        *("transfer-encoding", "x-api-key"),
    }
)
"""Headers that `extra_headers` may not have, because the client sets them or they are credentials."""
_SECRET_WORDS = ("auth", "cookie", "credential", "key", "password", "secret", "token")
MASK = "***"
"""The text that a round records in place of the value of a header."""
_MOST_STOPS = 64
_MOST_SECONDS = 86_400.0


@checks_keywords
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelSettings:
    """The settings of requests to a model. A setting that is None is left to the model, or to an earlier layer.

    The layers are, each overriding those before it: the model, the bundle or its workflow class, the descriptor module,
    `build_react`, the properties, the agent, and the message. Keys of `extra_headers` and `extra_body` are overridden one by
    one.

    Attributes:
        temperature: the randomness of the text, from 0 to 2.
        top_p: the share of the probability from which tokens are drawn, above 0 and up to 1.
        seed: a number that makes replies repeatable, as far as the provider can.
        stop: texts that end the reply; the reply does not contain them. One text may be given as a str.
        max_tokens: the most tokens of one reply, at most the model's output limit. The limit `max_tokens` of a turn is
            another: it counts all requests of the turn.
        presence_penalty: from -2 to 2; above 0, words that were used are less likely.
        frequency_penalty: from -2 to 2; above 0, words are less likely the more often they were used.
        reasoning_effort: how much the model thinks. It replaces the limit `reasoning_effort`. An effort that the model does
            not support is an error here; for the limit the nearest supported effort is sent.
        parallel_tool_calls: with False the model may make only one call in a reply.
        service_tier: the provider's own name of a tier of price and speed, such as `flex`.
        timeout: the seconds in which the whole reply must arrive. It replaces the model's `Timeouts`, but for a shorter
            timeout of its connection.
        extra_headers: more headers of the requests. Rounds record their names alone. Headers with credentials are refused.
        extra_body: more fields of the requests, such as `top_k`, as the provider names them. Their values are not checked;
            fields that Loopline itself writes are refused.
        unsupported: "error", the default, or "drop": a setting that the model does not support is left out, and the round
            records that and why.

    Raises:
        LooplineError: a value is out of its range; the message names the setting.
        TypeError: a keyword is unknown; the message names the most similar one.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: Effort | None = None
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    timeout: float | None = None
    extra_headers: Mapping[str, str] | None = field(default=None, hash=False)
    extra_body: Mapping[str, Json] | None = field(default=None, hash=False)
    unsupported: Unsupported | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        elif isinstance(self.stop, Sequence):
            object.__setattr__(self, "stop", tuple(self.stop))
        for name, (is_valid, expected) in _RULES.items():
            value: object = getattr(self, name)
            if value is not None and not is_valid(value):
                raise LooplineError(
                    f"ModelSettings({name}=…) must be {expected}, not {shorten_value(value)}"
                )

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"ModelSettings({values})"

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end the reply."""
        return tuple(self.stop or ())

    @property
    def drops(self) -> bool:
        """Whether a setting that the model does not support is left out."""
        return self.unsupported == "drop"

    @property
    def values(self) -> dict[str, Any]:
        """The settings that are set, by name."""
        values = {name: getattr(self, name) for name in NAMES}
        return {name: value for name, value in values.items() if value is not None}

    def override(self, later: ModelSettings) -> ModelSettings:
        """Return these settings with those of a later layer in place of the same ones.

        `extra_headers` and `extra_body` are merged by key.
        """
        if later == UNSET:
            return self
        if self == UNSET:
            return later
        changes = later.values
        for name in ("extra_headers", "extra_body"):
            if name in changes:
                changes[name] = {**(getattr(self, name) or {}), **changes[name]}
        return replace(self, **changes)

    def without(self, names: Sequence[str]) -> ModelSettings:
        """Return these settings without those of these names."""
        return replace(self, **dict.fromkeys(names)) if names else self

    def stored(self) -> JsonObject:
        """Return the settings that are set, as a JSON object that `restore_settings` reads."""
        return {name: _to_json(value) for name, value in self.values.items()}

    def recorded(self) -> JsonObject:
        """Return the settings as a round records them: as `stored`, with the values of headers masked."""
        stored = self.stored()
        if not self.extra_headers:
            return stored
        return {**stored, "extra_headers": dict.fromkeys(self.extra_headers, MASK)}

    def check_storable(self) -> None:
        """Check that the settings may be stored with a message: no header seems to have a credential.

        Raises:
            LooplineError: the name of a header contains a word such as `token`, `key`, `auth` or `secret`.
        """
        for name in self.extra_headers or ():
            if any(word in name.lower() for word in _SECRET_WORDS):
                raise LooplineError(
                    f"the header {name!r} would be stored with the message: put it into the settings of the model or of "
                    "the bundle"
                )


def shorten_value(value: object) -> str:
    """Return the repr of a value for an error message, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _to_json(value: object) -> Json:
    """Return a setting as JSON: a tuple as a list of texts, a mapping as a dict, other values unchanged."""
    match value:
        case tuple():
            return [str(item) for item in cast("tuple[object, ...]", value)]
        case Mapping():
            return dict(cast("Mapping[str, Json]", value))
        case _:
            return cast("Json", value)


def _is_number(low: float, high: float, *, above: bool = False) -> Callable[[object], bool]:
    """Return a check for a finite number from `low` to `high`, without bools; `above` excludes `low` itself."""

    def check(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            return False
        return low < value <= high if above else low <= value <= high

    return check


def _is_whole(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_texts(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(texts := cast("tuple[object, ...]", value)) <= _MOST_STOPS
        and all(isinstance(text, str) and text for text in texts)
    )


def _is_tier(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable() and value != ""


def _are_headers(value: object) -> bool:
    """Return whether a value maps valid header names outside of `OWN_HEADERS` to printable ASCII texts."""
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and name.isascii()
        and name.replace("-", "").replace("_", "").isalnum()
        and name.lower() not in OWN_HEADERS
        and isinstance(text, str)
        and text.isascii()
        and text.isprintable()
        for name, text in cast("Mapping[object, object]", value).items()
    )


def _is_body(value: object) -> bool:
    """Return whether a value is a mapping of JSON by non-empty names, without those in `STRUCTURE`."""
    if not isinstance(value, Mapping):
        return False
    body = cast("Mapping[object, Json]", value)
    if not all(isinstance(name, str) and name and name not in STRUCTURE for name in body):
        return False
    try:
        dumps(cast("JsonObject", dict(body)))
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_EFFORTS: tuple[Effort, ...] = get_args(Effort)
_RULES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "temperature": (_is_number(0, 2), "a number from 0 to 2"),
    "top_p": (_is_number(0, 1, above=True), "a number above 0 and up to 1"),
    "seed": (_is_whole(-(2**63), 2**63 - 1), "a whole number"),
    "stop": (_is_texts, f"a text or a list of at most {_MOST_STOPS} texts, none empty"),
    "max_tokens": (_is_whole(1, 1_000_000_000), "a whole number of at least 1"),
    "presence_penalty": (_is_number(-2, 2), "a number from -2 to 2"),
    "frequency_penalty": (_is_number(-2, 2), "a number from -2 to 2"),
    "reasoning_effort": (lambda value: value in _EFFORTS, f"one of {', '.join(_EFFORTS)}"),
    "parallel_tool_calls": (lambda value: isinstance(value, bool), "True or False"),
    "service_tier": (_is_tier, "the name of a tier, such as 'flex'"),
    "timeout": (_is_number(0, _MOST_SECONDS, above=True), "a number of seconds up to a day"),
    "extra_headers": (
        _are_headers,
        "a dict of ASCII texts by header, without headers that the client sets, such as Authorization (api_key sets that)",
    ),
    "extra_body": (
        _is_body,
        f"a dict of JSON values by field, without {', '.join(sorted(STRUCTURE))}",
    ),
    "unsupported": (lambda value: value in get_args(Unsupported), "'error' or 'drop'"),
}
NAMES: tuple[str, ...] = tuple(item.name for item in fields(ModelSettings))
"""The names of the settings."""
UNSET = ModelSettings()
"""Settings of which none is set."""


def read_settings(values: Mapping[str, Json], what: str = "settings") -> ModelSettings:
    """Return the settings in a section of a file, or in another mapping; `what` begins the error messages.

    Raises:
        LooplineError: a name is unknown, and the message names the most similar one; or a value is out of its range.
    """
    for name in values:
        if name not in NAMES:
            raise LooplineError(f"{what}: no setting {name!r}, {nearest_hint(name, NAMES)}")
    try:
        return ModelSettings(**cast("dict[str, Any]", dict(values)))
    except LooplineError as error:
        raise LooplineError(f"{what}: {error}") from error


def restore_settings(stored: Mapping[str, Json]) -> ModelSettings:
    """Return settings that were stored, without names that this version does not know.

    Raises:
        LooplineError: a value is out of its range.
    """
    if not stored:
        return UNSET
    known = {name: value for name, value in stored.items() if name in NAMES}
    return ModelSettings(**cast("dict[str, Any]", known))


def as_settings(value: object, what: str = "settings") -> ModelSettings:
    """Return a value that must be settings; a dict of settings is converted. `what` begins the error messages.

    Raises:
        LooplineError: the value is of another type, or a setting is not valid.
    """
    match value:
        case ModelSettings():
            return value
        case Mapping():
            return read_settings(cast("Mapping[str, Json]", value), what)
        case _:
            raise LooplineError(
                f"{what} must be ModelSettings, such as ModelSettings(temperature=0.2), not {shorten_value(value)}"
            )


class UnsupportedSetting(ModelRequestError):
    """The model does not support a setting; the message names it. No request was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSupport:
    """The settings that a model supports; by default only `max_tokens`, which every model does.

    Attributes:
        sampling: whether temperature and top_p are supported: `always`, `never`, or `unthinking`, only while the model does
            not think.
        thinks: whether the model thinks if a request does not say so, and must be told `reasoning_effort="none"`.
        both: whether temperature and top_p may be set together.
        temperature_limit: the highest temperature.
        seed: `seed` is supported.
        penalties: the penalties are supported.
        stops: the number of texts of `stop`, 0 if it is not supported.
        parallel_tool_calls: `parallel_tool_calls` is supported.
        efforts: the values of `reasoning_effort`.
        service_tiers: the values of `service_tier`.
        requests: the model sends HTTP requests: `timeout`, `extra_headers` and `extra_body` are supported.
    """

    sampling: Literal["always", "unthinking", "never"] = "never"
    thinks: bool = False
    both: bool = True
    temperature_limit: float = 2.0
    seed: bool = False
    penalties: bool = False
    stops: int = 0
    parallel_tool_calls: bool = False
    efforts: tuple[str, ...] = ()
    service_tiers: tuple[str, ...] = ()
    requests: bool = False

    def problems(
        self, settings: ModelSettings, output_limit: int, effort: str = ""
    ) -> Iterator[tuple[str, str]]:
        """Yield the name of each setting that is not supported, and a text for the supported alternative, or "".

        `effort` is the reasoning effort of the request if the settings have none.
        """
        yield from self._sampling_problems(settings, settings.reasoning_effort or effort)
        for name, is_supported in self._switches.items():
            if not is_supported and getattr(settings, name) is not None:
                yield name, ""
        if len(settings.stops) > self.stops:
            yield "stop", f"at most {self.stops} texts" if self.stops else ""
        choices = {"reasoning_effort": self.efforts, "service_tier": self.service_tiers}
        for name, supported in choices.items():
            value: str | None = getattr(settings, name)
            if value is not None and value not in supported:
                yield name, ", ".join(supported)
        if settings.max_tokens is not None and settings.max_tokens > output_limit:
            yield "max_tokens", f"at most {output_limit}"

    @property
    def _switches(self) -> Mapping[str, bool]:
        """The settings that are supported with every valid value or not at all, by name."""
        return {
            "seed": self.seed,
            "presence_penalty": self.penalties,
            "frequency_penalty": self.penalties,
            "parallel_tool_calls": self.parallel_tool_calls,
            "timeout": self.requests,
            "extra_headers": self.requests,
            "extra_body": self.requests,
        }

    def _sampling_problems(self, settings: ModelSettings, effort: str) -> Iterator[tuple[str, str]]:
        """Yield the problems of temperature, top_p and penalties, which a model may support only while it does not think."""
        is_thinking = effort != "none" if effort else self.thinks
        is_supported = self.sampling == "always" or (
            self.sampling == "unthinking" and not is_thinking
        )
        penalties = ("presence_penalty", "frequency_penalty") if self.penalties else ()
        names = [
            name
            for name in ("temperature", "top_p", *penalties)
            if getattr(settings, name) is not None
        ]
        if not is_supported:
            hint = ""
            if self.sampling == "unthinking":
                hint = "with reasoning_effort='none'" if self.thinks else "without reasoning_effort"
            for name in names:
                yield name, f"it {hint}" if hint else ""
            return
        if (settings.temperature or 0) > self.temperature_limit:
            yield "temperature", f"at most {self.temperature_limit:g}"
        if {"temperature", "top_p"} <= {*names} and not self.both:
            yield "top_p", "it without temperature"


ONLY_LENGTH = SettingSupport()
"""The support of `max_tokens` alone."""
EVERY_SETTING = SettingSupport(
    sampling="always",
    seed=True,
    penalties=True,
    stops=_MOST_STOPS,
    parallel_tool_calls=True,
    efforts=_EFFORTS,
    service_tiers=("auto", "default", "flex", "priority"),
    requests=True,
)
"""The support of all settings, of models that are not language models."""


@dataclass(frozen=True, slots=True)
class SupportedSettings:
    """The settings of a request that its model supports, and the reasons why others were dropped, by their names."""

    settings: ModelSettings
    dropped: Mapping[str, str] = field(default_factory=dict[str, str])


NOTHING_SET = SupportedSettings(UNSET)
