"""What is sent over OTLP arrives: spans in their tree, and metrics."""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, Metric, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loopline import Harness, LooplineError
from loopline.telemetry.spans import SCHEMA_URL
from loopline.testing import Call, FakeClock
from loopline.timeline import ConversationKey, MemoryLog
from tests.doors.command import Loopline
from tests.support.child_runs import Cast, Line, bundle
from tests.support.local_http import Answering, http_server
from tests.support.recording_observer import by_id, rebuilt

Plain = str | int | float | bool | list[str]


@dataclass
class Received:
    """What was sent, and where to send it; `fails` says that it is not taken."""

    url: str = ""
    fails: bool = False
    requests: int = 0
    spans: list[Span] = field(default_factory=list[Span])
    metrics: dict[str, Metric] = field(default_factory=dict[str, Metric])
    resource: dict[str, Plain] = field(default_factory=dict[str, Plain])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    scopes: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            for sent in traces.resource_spans:
                self.resource = values(list(sent.resource.attributes))
                for scope in sent.scope_spans:
                    self.spans.extend(scope.spans)
                    self.scopes.add((scope.scope.name, scope.scope.version, scope.schema_url))
        elif path == "/v1/metrics":
            measured = ExportMetricsServiceRequest.FromString(body)
            for metered in measured.resource_metrics:
                for scope in metered.scope_metrics:
                    self.scopes.add((scope.scope.name, scope.scope.version, scope.schema_url))
                    self.metrics.update({metric.name: metric for metric in scope.metrics})

    def span(self, name: str) -> Span:
        (found_span,) = [span for span in self.spans if span.name == name]
        return found_span


def values(pairs: list[KeyValue]) -> dict[str, Plain]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> Plain:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "array_value":
            return [value.string_value for value in value.array_value.values]
        case other:
            raise ValueError(f"no such value was sent before: {other}")


@contextmanager
def receiving() -> Generator[Received, None, None]:
    received = Received()

    class Handler(Answering):
        def post(self) -> None:
            body = self.body()
            received.requests += 1
            received.headers.append(dict(self.headers))
            if not received.fails:
                received.take(self.path, body)
            self.answer(b"", "application/x-protobuf", status=400 if received.fails else 200)

    with http_server(Handler) as received.url:
        yield received


FAMILY: dict[str, list[Line]] = {
    "top secret": [(Call("kin.ask", task="middle"), Call("play.fail", message="no")), "Top."],
    "middle": [Call("kin.ask", task="bottom"), "Middle."],
    "bottom": ["Bottom."],
}


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "tests")
        yield receiver


async def said(text: str, log: MemoryLog | None = None) -> MemoryLog:
    kept = log or MemoryLog(FakeClock())
    async with Harness.open(
        bundle, store=kept, model=Cast(FAMILY), clock=FakeClock(), telemetry="otlp"
    ) as harness:
        assert (await harness.conversation("c").say(text)).ok
    return kept


async def test_what_arrives_are_the_spans_of_the_log_with_their_parents(received: Received) -> None:
    log = await said("top secret")
    made = by_id(await rebuilt(log, ConversationKey(name="c")))
    sent = sorted(received.spans, key=lambda span: span.span_id)
    assert [
        (item.trace_id.hex(), item.span_id.hex(), item.parent_span_id.hex()) for item in sent
    ] == [(span.trace_id, span.span_id, span.parent_id or "") for span in made]
    assert [item.name for item in sent] == [span.name for span in made]
    assert [(item.start_time_unix_nano, item.end_time_unix_nano) for item in sent] == [
        (_nanoseconds(span.start.timestamp()), _nanoseconds(span.end.timestamp())) for span in made
    ]
    assert [values(list(span.attributes)) for span in sent] == [
        {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in span.attributes.items()
        }
        for span in made
    ]
    assert [result.status.code == result.status.STATUS_CODE_ERROR for result in sent] == [
        span.failed for span in made
    ]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1000) * 1_000_000


async def test_a_child_of_a_child_is_in_the_trace_below_the_call_of_its_parent(
    received: Received,
) -> None:
    await said("top secret")
    agents = {
        values(list(span.attributes))["gen_ai.conversation.id"]: span
        for span in received.spans
        if span.name == "invoke_agent kin"
    }
    calls = {span.span_id: span for span in received.spans if "kin.ask" in span.name}
    assert set(agents) == {"c", "c~c1", "c~c1~c1"}
    for name in ("c~c1~c1", "c~c1"):
        call = calls[agents[name].parent_span_id]
        assert call.parent_span_id == agents[name.removesuffix("~c1")].span_id
    assert agents["c"].parent_span_id == b""


async def test_who_sends_is_what_the_standard_variable_says(received: Received) -> None:
    await said("bottom")
    assert received.resource["service.name"] == "tests"


async def test_without_a_name_the_service_is_loopline(
    received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME")
    await said("bottom")
    assert received.resource["service.name"] == "loopline"


async def test_headers_are_those_of_the_standard_variable(
    received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k1")
    await said("bottom")
    assert {headers["x-key"] for headers in received.headers} == {"k1"}


async def test_a_trace_that_is_not_sampled_is_not_sent(
    received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    await said("top secret")
    assert received.spans == []


@pytest.mark.parametrize(("captured", "is_sent"), [("", False), ("SPAN_ONLY", True)])
async def test_what_was_said_is_sent_only_when_it_is_opted_in(
    captured: str, is_sent: bool, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", captured)
    await said("top secret")
    assert any("secret" in str(values(list(span.attributes))) for span in received.spans) == is_sent


def counts(received: Received, name: str) -> dict[tuple[Plain, ...], int | float]:
    points: list[NumberDataPoint] = list(received.metrics[name].sum.data_points)
    return {
        tuple(values(list(point.attributes)).values()): point.as_double or point.as_int
        for point in points
    }


def measured(received: Received, name: str) -> list[HistogramDataPoint]:
    return list(received.metrics[name].histogram.data_points)


async def test_what_is_sent_names_its_version_and_that_of_the_conventions(
    received: Received,
) -> None:
    await said("top secret")
    assert received.scopes == {("loopline", version("loopline"), SCHEMA_URL)}
    points = measured(received, "gen_ai.client.operation.duration")
    attributes = [values(list(point.attributes)) for point in points]
    assert attributes
    assert all(each["gen_ai.provider.name"] == "loopline" for each in attributes)


async def test_tokens_are_measured_by_model_and_kind(received: Received) -> None:
    await said("bottom")
    points = measured(received, "gen_ai.client.token.usage")
    told = {values(list(point.attributes))["gen_ai.token.type"]: point for point in points}
    assert {kind: (item.count, item.sum) for kind, item in told.items()} == {
        "input": (1, 10),
        "output": (1, 5),
    }
    assert list(told["input"].explicit_bounds) == [4.0**power for power in range(14)]
    assert values(list(told["input"].attributes)) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "loopline",
        "gen_ai.request.model": "cast",
        "gen_ai.response.model": "cast",
        "gen_ai.token.type": "input",
    }
    assert received.metrics["gen_ai.client.token.usage"].unit == "{token}"


async def test_durations_are_measured_in_seconds_by_operation(received: Received) -> None:
    await said("top secret")
    points = measured(received, "gen_ai.client.operation.duration")
    counted = Counter[str]()
    for point in points:
        counted[str(values(list(point.attributes))["gen_ai.operation.name"])] += point.count
    assert counted == {"chat": 5, "invoke_agent": 3, "execute_tool": 3}
    assert received.metrics["gen_ai.client.operation.duration"].unit == "s"
    bounds = points[0].explicit_bounds
    assert (bounds[0], bounds[-1], len(bounds)) == (0.01, 81.92, 14)


async def test_a_failed_call_is_measured_as_such(received: Received) -> None:
    await said("top secret")
    points = measured(received, "gen_ai.client.operation.duration")
    told = [values(list(point.attributes)) for point in points]
    assert [
        record["gen_ai.tool.name"]
        for record in told
        if record.get("error.type") and "gen_ai.tool.name" in record
    ] == ["play.fail"]


async def test_cost_is_counted_once_although_children_are_their_parents_too(
    received: Received,
) -> None:
    await said("top secret")
    assert sum(counts(received, "loopline.cost").values()) == pytest.approx(5 * 20 / 1_000_000)
    assert received.metrics["loopline.cost"].unit == "USD"


async def test_rounds_are_measured_for_each_turn(received: Received) -> None:
    await said("top secret")
    (point,) = measured(received, "loopline.rounds")
    assert (point.count, point.sum) == (3, 5)


async def test_metrics_alone_or_spans_alone_can_be_sent(
    received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    await said("bottom")
    assert (len(received.spans), received.metrics) == (2, {})
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    await said("bottom")
    assert (len(received.spans), "loopline.cost" in received.metrics) == (2, True)


async def test_a_receiver_that_refuses_harms_no_turn_and_is_told_of_once(
    received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    received.fails = True
    await said("bottom")
    assert received.requests == 2
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("loopline", logging.WARNING)
    ]
    assert "telemetry cannot be sent" in caplog.text


async def test_a_receiver_that_never_answers_holds_the_end_up_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
        start = time.monotonic()
        await said("bottom")
        assert time.monotonic() - start < 9
    assert caplog.text.count("telemetry cannot be sent") == 1


async def test_a_setting_that_cannot_be_used_is_told(
    received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    with pytest.raises(LooplineError, match=r"a variable OTEL_… has a wrong value: max_queue_size"):
        await said("bottom")


def test_the_command_sends_by_the_environment(tmp_path: Path) -> None:
    with receiving() as receiver:
        settings = {
            "LOOPLINE_TELEMETRY": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "LOOPLINE_STORE": "memory:",
        }
        loopline = Loopline(tmp_path, settings)
        assert loopline("new", "shop").code == 0
        assert loopline("run", "shop", "Hello?").code == 0
        assert receiver.span("invoke_agent shop").parent_span_id == b""
        refused = Loopline(tmp_path, {**settings, "LOOPLINE_TELEMETRY": "x"})("run", "shop", "Hi")
        assert "LOOPLINE_TELEMETRY is 'x'" in refused.err
