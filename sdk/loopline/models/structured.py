"""Structured calls: a reply as data, requested first in the strictest form that a model supports, then in looser ones.

The levels are a forced call of a function (one request), JSON mode (two requests) and plain text (two). Levels that the
model does not support are skipped.
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
    object_schema,
    raise_mismatches,
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
"""A function that extracts data from a text without JSON, or returns None."""

_QUOTED_CHARACTERS = 200


class StructuredCallError(ModelError, ValueError):
    """No reply matched the schema; the message lists the attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One request: the text of the reply (for a call, its arguments), and the `problem` if it did not fit, else ""."""

    level: Level
    text: str = ""
    problem: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredCallResult(Generic[T]):
    """The result of a structured call.

    Attributes:
        value: the requested value; the default value if no reply fitted, or None without one.
        raw: the JSON object from which the value was made; empty if no reply fitted.
        level: the level of the reply that fitted, or the last level.
        attempts: each request with its `level`, `text`, `problem` and `usage`.
        error: empty if a reply fitted; otherwise what was tried, and how the last text began.
    """

    value: T | None
    raw: JsonObject
    level: Level
    attempts: tuple[Attempt, ...]
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether a reply fitted the schema."""
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
            StructuredCallError: no reply fitted, and there is no default.
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
    """Ask a model for a JSON object, at most five times, until a reply fits a schema or a type.

    An error of the model, or a reply that does not fit, is reported in the result and does not raise.

    Args:
        model: The model to ask.
        prompt: The system text, the messages and the purpose; its tools are not offered.
        schema: A type, a pydantic adapter or a JSON Schema.
        parse_fn: Converts an object that fits; if it returns None or raises, the reply does not fit.
        name: The name of the function that a model with tool calls is forced to call.
        description: The description of that function.
        default_value: The value of the result if no reply fits.
        regex_fallback: Extracts an object from a text without JSON, only on the level `plain_text`. The object must fit too.
        timeout_seconds: The limit for each request.

    Raises:
        LooplineError: the schema is invalid, the type does not have a schema, or its values are not objects.
        CassetteError: the cassette of the model cannot be used, or lacks the reply.
        StoreError: the store failed.
    """
    validate: Callable[[Json], object]
    if isinstance(schema, dict):
        document = schema
        validate = validator_of_schema(schema)
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
"""The converted value, and its JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StructuredCall:
    """The parameters of one structured call; `validate` converts an object to the value."""

    model: Model
    prompt: Prompt
    spec: ToolSpec
    validate: Callable[[Json], object]
    parse_fn: Callable[[JsonObject], object] | None
    regex_fallback: RegexFallback | None
    timeout_seconds: float | None

    async def run(self, default_value: object) -> StructuredCallResult[object]:
        """Send requests until a reply fits, and return the result with all attempts.

        A level is tried again only if its reply had a text; the next request then names the problem. If no reply fits, the
        value is `default_value`.
        """
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
                    break  # without a text to correct, the same request would be repeated
        return StructuredCallResult(
            value=default_value,
            raw={},
            level="plain_text",
            attempts=tuple(attempts),
            error=_failure(self.model, attempts),
        )

    async def _attempt(self, level: Level, last: Attempt | None) -> tuple[Attempt, _Fit | None]:
        """Send one request; return the attempt, and the value with its object, or None if the reply does not fit.

        A `ModelError`, a refusal or a mismatch is the `problem` of the attempt.
        """
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
        """Convert an object to the value; raise `SchemaMismatch` for any error, or if `parse_fn` returns None."""
        with raise_mismatches():
            value = self.validate(raw)
            if self.parse_fn is not None:
                value = self.parse_fn(raw)
                if value is None:
                    raise SchemaMismatch("it could not be converted")
            return value

    def _object(self, level: Level, text: str) -> JsonObject:
        """Return the JSON object in a text; on the level `plain_text`, `regex_fallback` is tried if there is none.

        Raises:
            SchemaMismatch: the text has no object, or the fallback failed.
        """
        extracted = extract_json(text)
        if extracted is None and level == "plain_text" and self.regex_fallback is not None:
            try:
                extracted = self.regex_fallback(text)
            except Exception as error:
                raise SchemaMismatch(
                    f"the fallback failed: {type(error).__name__}: {error}"
                ) from error
        if extracted is None:
            broken = [item for item in scan_json(text) if isinstance(item, BrokenJson)]
            problem = "it does not contain a JSON object" if text.strip() else "it is empty"
            raise SchemaMismatch(f"its JSON is broken: {broken[0].problem}" if broken else problem)
        return well_formed_object(extracted)

    def _request(self, level: Level, last: Attempt | None) -> Prompt:
        """Return the prompt of an attempt, which forces the tool or quotes the schema, and adds the last problem."""
        prompt = self.prompt
        forced = level == "native"
        wants_json = level == "json_mode"
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
    """Return the levels that a model supports, the strictest first, and the most requests for each."""
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


async def complete_reply(model: Model, prompt: Prompt, timeout_seconds: float | None) -> Reply:
    """Return the model's complete reply, without streaming it.

    Raises:
        ModelError: the model fails, does not reply within `timeout_seconds`, or ends its stream without a reply; any
            other error of the model becomes a ModelError, except errors of a store or a cassette.
    """
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
    """Return the text of an error with the problem of each attempt, and the start of the last text."""
    problems = "; ".join(f"{attempt.level}: {attempt.problem}" for attempt in attempts)
    last = next((attempt.text for attempt in reversed(attempts) if attempt.text.strip()), "")
    quoted = f"; the last text was {last[:_QUOTED_CHARACTERS]!r}" if last else ""
    return f"{model.name} gave no usable reply in {len(attempts)} requests: {problems}{quoted}"
