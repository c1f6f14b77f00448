"""Structured calls: a reply as data, requested in the strictest form a model supports, then in looser ones.

The levels are a forced call of a function (one request), JSON mode (two) and plain text (two), as far
as the model has them: at most 5 requests, 4 without calls, 3 without JSON mode, 2 with neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from msgspec import structs

from loopline.errors import CassetteError, ModelError, StoreError
from loopline.models.json import (
    BrokenJson,
    Json,
    JsonObject,
    dumps,
    extract_json,
    scan_json,
    well_formed,
    well_formed_object,
)
from loopline.models.json_schema import (
    SchemaMismatch,
    adapter_of,
    json_form,
    mismatches,
    object_schema,
    validator_of_adapter,
    validator_of_schema,
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
"""Extracts data from a text without JSON; None if there is none."""

_QUOTED_CHARACTERS = 200


class StructuredCallError(ModelError, ValueError):
    """No reply fitted the schema; the message names the attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One request: the text of the reply (of a call, its arguments), and why it did not fit, if so."""

    level: Level
    text: str = ""
    problem: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredCallResult(Generic[T]):
    """The result of a structured call.

    `value` is the requested value, or the default, or None; `raw` the object it was made of, empty if no
    reply fitted, as `error` then says. `level` is the level that gave it, else the last one.
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
        """The usage of all requests together."""
        return sum((attempt.usage for attempt in self.attempts), Usage())

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of the model in each request."""
        return tuple(attempt.text for attempt in self.attempts)

    def required(self) -> T:
        """Return the value.

        Raises:
            StructuredCallError: there is neither a value nor a default.
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
    validate: Callable[[Json], object]
    if isinstance(schema, dict):
        document, validate = schema, validator_of_schema(schema)
    else:
        adapter, document = adapter_of(schema)
        validate = validator_of_adapter(adapter)
    call = _StructuredCall(
        model=model,
        prompt=prompt,
        spec=ToolSpec(name=name, description=description, parameters=object_schema(document)),
        validate=validate,
        parse_fn=parse_fn,
        regex_fallback=regex_fallback,
        timeout_seconds=timeout_seconds,
    )
    return await call.run(default_value)


_Fit = tuple[object, JsonObject]
"""The value that an object stands for, and the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StructuredCall:
    """One structured call: the model, the prompt, and the type of the value."""

    model: Model
    prompt: Prompt
    spec: ToolSpec
    validate: Callable[[Json], object]
    parse_fn: Callable[[JsonObject], object] | None
    regex_fallback: RegexFallback | None
    timeout_seconds: float | None

    async def run(self, default_value: object) -> StructuredCallResult[object]:
        """Return the value that fitted at last, with every attempt."""
        attempts: list[Attempt] = []
        for level, tries in _levels(self.model.capabilities):
            last: Attempt | None = None
            for _ in range(tries):
                last, fit = await self._attempt(level, last)
                attempts.append(last)
                if fit is not None:
                    value, raw = fit
                    return StructuredCallResult(
                        value=value, raw=raw, level=level, attempts=tuple(attempts)
                    )
                if not last.text.strip():
                    break  # there is nothing to correct, and repeating the request does not help
        return StructuredCallResult(
            value=default_value,
            raw={},
            level="plain_text",
            attempts=tuple(attempts),
            error=_failure(self.model, attempts),
        )

    async def _attempt(self, level: Level, last: Attempt | None) -> tuple[Attempt, _Fit | None]:
        try:
            reply = await complete_reply(
                self.model, self._request(level, last), self.timeout_seconds
            )
        except ModelError as error:
            return Attempt(level=level, problem=well_formed(str(error))), None
        text = well_formed(reply.text)
        if reply.stop_reason == "refusal":
            problem = f"the model refused: {text[:_QUOTED_CHARACTERS]}".removesuffix(": ")
            return Attempt(level=level, problem=problem, usage=reply.usage), None
        if level == "native" and reply.calls:
            text = dumps(well_formed_object(reply.calls[0].arguments))
        try:
            raw = self._object(level, text)
            fit = self._read(raw), raw
        except SchemaMismatch as unfit:
            cut = "; it was cut off at the output limit" if reply.stop_reason == "length" else ""
            problem = f"{unfit}{cut}"
            return Attempt(level=level, text=text, problem=problem, usage=reply.usage), None
        return Attempt(level=level, text=text, usage=reply.usage), fit

    def _read(self, raw: JsonObject) -> object:
        with mismatches():
            value = self.validate(raw)
            if self.parse_fn is not None:
                value = self.parse_fn(raw)
                if value is None:
                    raise SchemaMismatch("it could not be converted")
            return value

    def _object(self, level: Level, text: str) -> JsonObject:
        extracted = extract_json(text)
        if extracted is None and level == "plain_text" and self.regex_fallback is not None:
            try:
                extracted = self.regex_fallback(text)
            except Exception as error:
                raise SchemaMismatch(
                    f"the fallback failed: {type(error).__name__}: {error}"
                ) from error
        if extracted is None:
            raise SchemaMismatch(_problem_without_json(text))
        return well_formed_object(extracted)

    def _request(self, level: Level, last: Attempt | None) -> Prompt:
        prompt, forced, wants_json = self.prompt, level == "native", level == "json_mode"
        by_schema = wants_json and self.model.capabilities.json_schema
        tail = (UserMessage(text=prompt.tail),) if prompt.tail else ()
        instructions = "" if forced else _INSTRUCTIONS + dumps(self.spec.parameters)
        return structs.replace(
            prompt,
            system="\n\n".join(part for part in (prompt.system, instructions) if part),
            tools=(self.spec,) if forced else (),
            messages=(*prompt.messages, *tail, *_correction(last)),
            tail="",
            options=replace(
                prompt.options,
                allow_calls=forced,
                protocol="native",
                force_tool=self.spec.name if forced else "",
                json_object=wants_json and not by_schema,
                json_form=json_form(self.spec.name, self.spec.parameters) if by_schema else None,
            ),
        )


_INSTRUCTIONS = "Reply with one JSON object and nothing else. It must fit this JSON Schema:\n"


def _levels(capabilities: Capabilities) -> list[tuple[Level, int]]:
    """Return the levels a model supports, and the number of requests for each."""
    levels: list[tuple[Level, int]] = []
    if capabilities.tool_call and capabilities.tool_choice:
        levels.append(("native", 1))
    if capabilities.json_mode or capabilities.json_schema:
        levels.append(("json_mode", 2))
    return [*levels, ("plain_text", 2)]


def _correction(last: Attempt | None) -> tuple[Message, ...]:
    if last is None:
        return ()
    request = f"Your last reply cannot be used: {last.problem}. Give the whole JSON object again."
    return AssistantMessage(text=last.text), UserMessage(text=request)


def _problem_without_json(text: str) -> str:
    broken = [item for item in scan_json(text) if isinstance(item, BrokenJson)]
    if broken:
        return f"its JSON is broken: {broken[0].problem}"
    return "it holds no JSON object" if text.strip() else "it is empty"


async def complete_reply(model: Model, prompt: Prompt, timeout_seconds: float | None) -> Reply:
    """Return the model's complete reply; any error but that of a store or cassette is a ModelError."""
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
    """Return the text of an error: the attempts, and how the last text began."""
    problems = "; ".join(f"{attempt.level}: {attempt.problem}" for attempt in attempts)
    last = next((attempt.text for attempt in reversed(attempts) if attempt.text.strip()), "")
    quoted = f"; the last text was {last[:_QUOTED_CHARACTERS]!r}" if last else ""
    return f"{model.name} gave nothing usable in {len(attempts)} requests: {problems}{quoted}"
