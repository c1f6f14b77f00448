"""What a refusal means: by the table of what the vendors document, in a response and in a stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverflow,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelTimedOut,
    ModelUnavailable,
)
from loopline.models import ApiVendor, ErrorMeaning, Json, JsonObject, dumps, find_documented_error
from loopline.models.provider_errors import DOCUMENTED_ERRORS, DocumentedError
from loopline.providers.failures import AnsweredError, Credentials, response_error, stream_error

MEANT: dict[ErrorMeaning, type[ModelError]] = {
    "request": ModelRequestError,
    "missing": ModelRequestError,
    "key": ModelAccessError,
    "money": ModelAccessError,
    "rights": ModelAccessError,
    "size": ModelOverflow,
    "rate": ModelRateLimited,
    "busy": ModelOverloaded,
    "server": ModelOverloaded,
    "call": AnsweredError,
    "content": AnsweredError,
}


def account(wire: ApiVendor) -> Credentials:
    return Credentials("x:m", "THE_KEY", "sk-1", wire)


def told(refusal: DocumentedError) -> JsonObject:
    """The error as its vendor writes it."""
    name = "type" if refusal.wire == "anthropic" else "code"
    return {"error": {name: refusal.name or None, "message": "It is so."}}


def expected(refusal: DocumentedError) -> type[ModelError]:
    return ModelTimedOut if refusal.status in {408, 504} else MEANT[refusal.meaning]


def both_ways(refusal: DocumentedError) -> Iterator[ModelError]:
    """The error as a response, and within a stream where it has a name."""
    yield response_error(refusal.status, {}, dumps(told(refusal)), account(refusal.wire))
    if refusal == find_documented_error(refusal.wire, None, refusal.name):
        yield stream_error(told(refusal), account(refusal.wire))


@pytest.mark.parametrize(
    "refusal", DOCUMENTED_ERRORS, ids=lambda one: f"{one.wire}-{one.status}-{one.name}"
)
def test_a_documented_error_is_what_the_table_says(refusal: DocumentedError) -> None:
    for error in both_ways(refusal):
        assert type(error) is expected(refusal)
        assert isinstance(error, ModelUnavailable) == refusal.again
        assert ("THE_KEY" in str(error)) == (refusal.meaning in {"key", "money", "rights"})


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        (400, ModelRequestError),
        (402, ModelAccessError),
        (408, ModelTimedOut),
        (429, ModelRateLimited),
        ("429", ModelRateLimited),
        (502, ModelOverloaded),
        (504, ModelTimedOut),
    ],
)
def test_a_status_within_a_stream_is_its_code(code: Json, meant: type[ModelError]) -> None:
    event: JsonObject = {"error": {"code": code, "message": "Provider returned error"}}
    assert type(stream_error(event, account("openai"))) is meant
    assert type(response_error(200, {}, dumps(event), account("openai"))) is meant


@pytest.mark.parametrize(
    "error", ["It broke.", {"message": "It broke."}, {"code": "new", "type": 7}]
)
def test_what_nobody_documents_may_pass_where_a_reply_had_begun(error: Json) -> None:
    assert type(stream_error({"error": error}, account("anthropic"))) is ModelOverloaded


@pytest.mark.parametrize(
    ("status", "meant"),
    [(418, ModelRequestError), (422, ModelRequestError), (520, ModelOverloaded)],
)
def test_an_unknown_status_is_a_fault_of_the_request_below_500(
    status: int, meant: type[ModelError]
) -> None:
    assert type(response_error(status, {}, "<html>no</html>", account("openai"))) is meant


def test_a_wrong_request_names_the_part() -> None:
    wrong: JsonObject = {"message": "m" * 900, "param": "tools[0].name", "code": "invalid_value"}
    error = response_error(400, {}, dumps({"error": wrong}), account("openai"))
    assert str(error).endswith("m (in tools[0].name) (400)")


def test_what_the_provider_behind_openrouter_says_is_told() -> None:
    record: JsonObject = {"provider_name": "Other", "raw": "The context is gone."}
    wrong: JsonObject = {"code": 400, "message": "Provider returned error", "metadata": record}
    error = stream_error({"error": wrong}, account("openai"))
    assert str(error) == "x:m: Provider returned error: The context is gone. (400)"


def test_a_delay_is_told_by_whoever_may_be_asked_again() -> None:
    for status in (429, 500, 504):
        error = response_error(status, {"retry-after": "7"}, "", account("openai"))
        assert isinstance(error, ModelUnavailable)
        assert error.retry_after == 7


ME = Credentials("openai:gpt", "OPENAI_API_KEY", "sk-1234", "openai")
ANSWERS: list[tuple[int, str, type[ModelError]]] = [
    (401, '{"error": {"message": "Incorrect API key provided: sk-1234"}}', ModelAccessError),
    (403, "{}", ModelAccessError),
    (429, '{"error": {"message": "slow down"}}', ModelRateLimited),
    (429, '{"error": {"code": "insufficient_quota", "message": "no"}}', ModelAccessError),
    (408, "", ModelTimedOut),
    (500, "oops", ModelOverloaded),
    (503, "<html>", ModelOverloaded),
    (529, '{"error": {"type": "overloaded_error", "message": "Overloaded"}}', ModelOverloaded),
    (400, '{"error": {"message": "bad", "param": "tools[0]"}}', ModelRequestError),
    (404, '{"error": {"message": "no such model"}}', ModelRequestError),
    (400, '{"error": {"code": "context_length_exceeded", "message": "too long"}}', ModelOverflow),
    (
        413,
        '{"error": {"type": "request_too_large", "message": "Request too large"}}',
        ModelOverflow,
    ),
]


@pytest.mark.parametrize(("status", "body", "meant"), ANSWERS)
def test_a_status_and_its_words_are_one_of_our_errors(
    status: int, body: str, meant: type[ModelError]
) -> None:
    error = response_error(status, {}, body, ME)
    assert type(error) is meant
    assert str(error).startswith("openai:gpt: ")
    assert "sk-1234" not in str(error)


def test_a_refused_key_names_its_variable_and_a_wrong_part_is_named() -> None:
    assert "OPENAI_API_KEY" in str(response_error(401, {}, "{}", ME))
    assert "tools[0]" in str(response_error(*ANSWERS[8][:1], {}, ANSWERS[8][1], ME))
