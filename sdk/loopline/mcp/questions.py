"""Questions that a server asks the user while one of its tools runs (elicitation)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from mcp.client import ClientRequestContext
from mcp_types import (
    INVALID_PARAMS,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
)
from pydantic import TypeAdapter, ValidationError

from loopline.mcp.tool_lists import SCHEMA_BYTES
from loopline.models import Json, JsonObject, dumps, one_line
from loopline.models.bounded_schema import UnusableSchema, check_schema
from loopline.models.json_schema import SchemaMismatch, validator_of_checked
from loopline.tools import AskPerson

QUESTION_CHARACTERS = 2_000
FormContent = dict[str, str | int | float | bool | list[str] | None]
_CONTENT: TypeAdapter[FormContent] = TypeAdapter(FormContent)
_DECLINED = ElicitResult(action="decline")


@dataclass(frozen=True, slots=True, eq=False)
class _AskingCall:
    """A call that runs, and its questions that wait."""

    ask: AskPerson
    waiting: set[asyncio.Task[Json]] = field(default_factory=set[asyncio.Task[Json]])


_current: ContextVar[_AskingCall | None] = ContextVar("_current", default=None)


class ServerQuestions:
    """The questions of one server, each given to the call that it belongs to.

    A server of the older protocol does not say which call that is: with several open ones its question is declined.
    """

    def __init__(self, server: str, without_secrets: Callable[[str], str]) -> None:
        self._server = server
        self._without_secrets = without_secrets
        self._open: list[_AskingCall] = []

    @contextmanager
    def of_call(self, ask: AskPerson) -> Generator[None]:
        """Give questions to this call while it runs; those that wait are cancelled with it."""
        call = _AskingCall(ask)
        token = _current.set(call)
        self._open.append(call)
        try:
            yield
        finally:
            self._open.remove(call)
            _current.reset(token)
            for task in call.waiting:
                task.cancel()

    async def ask(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Ask the user of the call, and return what the server gets."""
        del context
        if isinstance(params, ElicitRequestFormParams):
            try:
                await asyncio.to_thread(_check_form, params.requested_schema)
            except UnusableSchema as error:
                return ErrorData(code=INVALID_PARAMS, message=f"requestedSchema: {error}")
        call = _current.get()
        if call is None and len(self._open) == 1:
            [call] = self._open
        if call is None:
            return _DECLINED
        task = asyncio.ensure_future(self._answer(call, params))
        call.waiting.add(task)
        try:
            answer = await task
            return await asyncio.to_thread(_result, answer, params)
        except asyncio.CancelledError:
            if task.cancelled() and call not in self._open:
                return ElicitResult(action="cancel")  # the call has ended
            raise
        finally:
            call.waiting.discard(task)

    async def _answer(self, call: _AskingCall, params: ElicitRequestParams) -> Json:
        message = one_line(self._without_secrets(params.message), QUESTION_CHARACTERS)
        match params:
            case ElicitRequestFormParams(requested_schema=schema):
                return await call.ask(f"{self._server} asks: {message}", dict(schema))
            case ElicitRequestURLParams(url=url):
                address = one_line(self._without_secrets(url), QUESTION_CHARACTERS)
                return await call.ask(f"{self._server} asks you to open {address}: {message}", None)


def _check_form(schema: JsonObject) -> None:
    """Check the schema of a form, which may take a while.

    Raises:
        UnusableSchema: no answer can be checked against it.
    """
    size = len(dumps(schema))
    if size > SCHEMA_BYTES:
        raise UnusableSchema(f"it has {size:,} bytes, more than {SCHEMA_BYTES:,}")
    check_schema(schema, skip_unreadable=True)


def _result(answer: Json, params: ElicitRequestParams) -> ElicitResult:
    """Return the answer as the server gets it: declined without one, cancelled if it fits no schema."""
    if answer is None or answer is False:
        return _DECLINED
    if isinstance(params, ElicitRequestURLParams):
        return ElicitResult(action="accept")
    try:
        filled = _with_defaults(answer, params.requested_schema)
        validator_of_checked(params.requested_schema)(filled)
        return ElicitResult(action="accept", content=_CONTENT.validate_python(filled))
    except (SchemaMismatch, ValidationError):
        return ElicitResult(action="cancel")


def _with_defaults(answer: Json, schema: Mapping[str, Json]) -> Json:
    """Return the answer with the default of every field that it leaves out."""
    match answer, schema:
        case dict(), {"properties": dict(properties)}:
            defaults = {
                name: described["default"]
                for name, described in properties.items()
                if isinstance(described, dict) and "default" in described
            }
            return {**defaults, **answer}
        case _:
            return answer
