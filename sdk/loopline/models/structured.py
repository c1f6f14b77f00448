"""A reply that is data: asked for in the strictest form a model knows, then in looser ones.

The levels are a forced call of a function (one request), JSON mode (two) and plain text (two), as far
as the model has them: at most 5 requests, 4 without calls, 3 without JSON mode, 2 with neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from loopline.errors import CassetteError, ModelError, StoreError
from loopline.models.json import (
    BrokenJson,
    JsonObject,
    dumps,
    extract_json,
    scan_json,
    well_formed,
    well_formed_object,
)
from loopline.models.json_schema import (
    ObjectType,
    SchemaMismatch,
    json_form,
    shape_of_schema,
    shape_of_type,
)
from loopline.models.model import Capabilities, Model
from loopline.models.prompt import (
    AssistantMessage,
    Message,
    Prompt,
    Reply,
    ToolSpec,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

Level = Literal["native", "json_mode", "plain_text"]
RegexFallback = Callable[[str], JsonObject | None]
"""Data read off a text that holds no JSON; None when there is none to read."""

_QUOTED = 200


class StructuredCallError(ModelError, ValueError):
    """No reply was what was asked for; the message names what was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One request: what came back (of a call, its arguments), and why it would not do, if so."""

    level: Level
    text: str = ""
    problem: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredCallResult(Generic[T]):
    """What came of a structured call.

    `value` is what was asked for, or the default, or None; `raw` the object it was made of, empty when
    no reply fitted, as `error` then says. `level` is the one that gave it, else the last one.
    """

    value: T | None
    raw: JsonObject
    level: Level
    attempts: tuple[Attempt, ...]
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether a reply fitted."""
        return not self.error

    @property
    def usage(self) -> Usage:
        """What all requests cost together."""
        return sum((one.usage for one in self.attempts), Usage())

    @property
    def texts(self) -> tuple[str, ...]:
        """What the model wrote in each request."""
        return tuple(one.text for one in self.attempts)

    def required(self) -> T:
        """The value.

        Raises:
            StructuredCallError: there is none, nor a default.
        """
        if self.value is None:
            raise StructuredCallError(self.error)
        return self.value


@overload
async def structured_llm_call(
    model: Model,
    prompt: Prompt,
    schema: type[T] | TypeAdapter[T],
    *,
    name: str = ...,
    description: str = ...,
    default_value: T | None = None,
    regex_fallback: RegexFallback | None = None,
    timeout_seconds: float | None = None,
) -> StructuredCallResult[T]: ...
@overload
async def structured_llm_call(
    model: Model,
    prompt: Prompt,
    schema: JsonObject,
    *,
    name: str = ...,
    description: str = ...,
    default_value: JsonObject | None = None,
    regex_fallback: RegexFallback | None = None,
    timeout_seconds: float | None = None,
) -> StructuredCallResult[JsonObject]: ...
@overload
async def structured_llm_call(
    model: Model,
    prompt: Prompt,
    schema: type[Any] | TypeAdapter[Any] | JsonObject,
    *,
    parse_fn: Callable[[JsonObject], T | None],
    name: str = ...,
    description: str = ...,
    default_value: T | None = None,
    regex_fallback: RegexFallback | None = None,
    timeout_seconds: float | None = None,
) -> StructuredCallResult[T]: ...
async def structured_llm_call(
    model: Model,
    prompt: Prompt,
    schema: type[Any] | TypeAdapter[Any] | JsonObject,
    *,
    parse_fn: Callable[[JsonObject], Any] | None = None,
    name: str = "reply",
    description: str = "Give the reply in this form.",
    default_value: Any = None,
    regex_fallback: RegexFallback | None = None,
    timeout_seconds: float | None = None,
) -> StructuredCallResult[Any]:
    """Ask for a JSON object that fits a schema, or a type that has one, until a reply does.

    The prompt brings system text, messages and purpose; its tools are not offered. `name` and
    `description` are those of the function that a model with calls is made to call. What fits goes
    through `parse_fn`; None from it, or an error, is a reply that does not fit. `regex_fallback` is
    asked about plain texts without JSON. `timeout_seconds` bounds each request. Whatever the model
    does is a result, never an exception.

    Raises:
        LooplineError: the schema is none, or its JSON form is no object.
    """
    shape: ObjectType[Any] = (
        shape_of_schema(schema) if isinstance(schema, dict) else shape_of_type(schema)
    )
    asking = _Asking(
        model=model,
        prompt=prompt,
        shape=shape.then(parse_fn) if parse_fn is not None else shape,
        spec=ToolSpec(name=name, description=description, parameters=shape.schema),
        regex_fallback=regex_fallback,
        timeout_seconds=timeout_seconds,
    )
    attempts, fit = await asking.asked()
    if fit is None:
        error = _failure(model, attempts)
        return StructuredCallResult(
            value=default_value, raw={}, level="plain_text", attempts=tuple(attempts), error=error
        )
    return StructuredCallResult(
        value=fit.value, raw=fit.raw, level=attempts[-1].level, attempts=tuple(attempts)
    )


@dataclass(frozen=True, slots=True)
class _Fit(Generic[T]):
    value: T
    raw: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking(Generic[T]):
    """One structured call: what is asked of whom, and what would do."""

    model: Model
    prompt: Prompt
    shape: ObjectType[T]
    spec: ToolSpec
    regex_fallback: RegexFallback | None
    timeout_seconds: float | None

    async def asked(self) -> tuple[list[Attempt], _Fit[T] | None]:
        """Every request that was made, and what fitted at last."""
        attempts = list[Attempt]()
        for level, tries in _levels(self.model.capabilities):
            last: Attempt | None = None
            for _ in range(tries):
                last, fit = await self._attempt(level, last)
                attempts.append(last)
                if fit is not None:
                    return attempts, fit
                if not last.text.strip():
                    break  # there is nothing to correct, and the same request again is no use
        return attempts, None

    async def _attempt(self, level: Level, last: Attempt | None) -> tuple[Attempt, _Fit[T] | None]:
        try:
            reply = await _reply(self.model, self._request(level, last), self.timeout_seconds)
        except ModelError as error:
            return Attempt(level=level, problem=well_formed(str(error))), None
        text = well_formed(reply.text)
        if reply.stop_reason == "refusal":
            problem = f"the model refused: {text[:_QUOTED]}".removesuffix(": ")
            return Attempt(level=level, problem=problem, usage=reply.usage), None
        if level == "native" and reply.calls:
            text = dumps(well_formed_object(reply.calls[0].arguments))
        try:
            raw = self._object(level, text)
            fit = _Fit(self.shape.read(raw), raw)
        except SchemaMismatch as unfit:
            cut = "; it was cut off at the output limit" if reply.stop_reason == "length" else ""
            problem = f"{unfit}{cut}"
            return Attempt(level=level, text=text, problem=problem, usage=reply.usage), None
        return Attempt(level=level, text=text, usage=reply.usage), fit

    def _object(self, level: Level, text: str) -> JsonObject:
        found = extract_json(text)
        if found is None and level == "plain_text" and self.regex_fallback is not None:
            found = _read_off(text, self.regex_fallback)
        if found is None:
            raise SchemaMismatch(_without_json(text))
        return well_formed_object(found)

    def _request(self, level: Level, last: Attempt | None) -> Prompt:
        asked, forced, wants = self.prompt, level == "native", level == "json_mode"
        formed = wants and self.model.capabilities.json_schema
        manual = "" if forced else _MANUAL + dumps(self.spec.parameters)
        return replace(
            asked,
            system="\n\n".join(part for part in (asked.system, manual) if part),
            tools=(self.spec,) if forced else (),
            messages=(*asked.messages, *_said(asked.tail), *_correction(last)),
            tail="",
            options=replace(
                asked.options,
                allow_calls=forced,
                protocol="native",
                force_tool=self.spec.name if forced else "",
                json_object=wants and not formed,
                json_form=json_form(self.spec.name, self.spec.parameters) if formed else None,
            ),
        )


_MANUAL = "Reply with one JSON object and nothing else. It must fit this JSON Schema:\n"


def _levels(capabilities: Capabilities) -> list[tuple[Level, int]]:
    """The levels a model has, and the requests that each is worth."""
    found: list[tuple[Level, int]] = []
    if capabilities.tool_call and capabilities.tool_choice:
        found.append(("native", 1))
    if capabilities.json_mode or capabilities.json_schema:
        found.append(("json_mode", 2))
    return [*found, ("plain_text", 2)]


def _said(text: str) -> tuple[Message, ...]:
    return (UserMessage(text=text),) if text else ()


def _correction(last: Attempt | None) -> tuple[Message, ...]:
    if last is None:
        return ()
    said = f"Your last reply cannot be used: {last.problem}. Give the whole JSON object again."
    return AssistantMessage(text=last.text), UserMessage(text=said)


def _without_json(text: str) -> str:
    broken = [one for one in scan_json(text) if isinstance(one, BrokenJson)]
    if broken:
        return f"its JSON is broken: {broken[0].problem}"
    return "it holds no JSON object" if text.strip() else "it is empty"


def _read_off(text: str, fallback: RegexFallback) -> JsonObject | None:
    try:
        return fallback(text)
    except Exception as error:
        raise SchemaMismatch(f"the fallback failed: {type(error).__name__}: {error}") from error


async def _reply(model: Model, prompt: Prompt, timeout_seconds: float | None) -> Reply:
    """The model's reply, whole; whatever goes wrong is a ModelError, save a lost store."""
    reply: Reply | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            async for piece in model.stream(prompt):
                if isinstance(piece, Reply):
                    reply = piece
    except (CassetteError, ModelError, StoreError):
        raise
    except TimeoutError as error:
        raise ModelError(str(error) or f"no reply within {timeout_seconds} seconds") from error
    except Exception as error:
        raise ModelError(f"{type(error).__name__}: {error}") from error
    if reply is None:
        raise ModelError("the stream ended without a reply")
    return reply


def _failure(model: Model, attempts: list[Attempt]) -> str:
    """What was tried, and how the last text began."""
    tried = "; ".join(f"{one.level}: {one.problem}" for one in attempts)
    last = next((one.text for one in reversed(attempts) if one.text.strip()), "")
    quoted = f"; the last text was {last[:_QUOTED]!r}" if last else ""
    return f"{model.name} gave nothing usable in {len(attempts)} requests: {tried}{quoted}"
