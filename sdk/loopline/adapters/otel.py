"""Telemetry over OTLP/HTTP: spans and metrics of turns, by the OpenTelemetry SDK.

The SDK's own threads send them. Its settings are the standard `OTEL_*` variables.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision

from loopline.events import ObservedTurn, genai
from loopline.events.spans import FinishedSpan, TurnSpans
from loopline.timeline import Block

SCOPE = "loopline"
DRAIN_SECONDS = 5.0
"""How long closing waits for what is still to be sent."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = {"internal": trace.SpanKind.INTERNAL, "client": trace.SpanKind.CLIENT}

_logger = logging.getLogger("loopline")
_sending: ContextVar[bool] = ContextVar("_sending", default=False)


class Otlp:
    """An observer that sends what turns do. `content` sends along what was said, called and given."""

    def __init__(
        self,
        *,
        content: bool = False,
        traces: bool = True,
        metrics: bool = True,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        self._content = content
        self._drain_seconds = drain_seconds
        self._outlets: list[_Spans | _Metrics] = []
        once, resource = _Once(), _resource()
        for exporter in (OTLPSpanExporter, OTLPMetricExporter):
            logging.getLogger(exporter.__module__).addFilter(_not_sending)
        if traces:
            self._outlets.append(_Spans(resource, once))
        if metrics:
            self._outlets.append(_Metrics(resource, once))
        self._once = once

    def begin(self, turn: ObservedTurn, blocks: Sequence[Block]) -> Callable[[Block], None]:
        """Send the spans of the turn that end from now on."""
        spans = TurnSpans(turn, content=self._content)
        for block in blocks:
            spans.take(block)

        def heard(block: Block) -> None:
            for span in spans.take(block):
                for outlet in self._outlets:
                    outlet.take(span)

        return heard

    async def close(self) -> None:
        """Send what is left, for a bounded time; what a receiver does not take by then is lost."""
        loop, drained = asyncio.get_running_loop(), asyncio.Event()

        def drain() -> None:
            for outlet in self._outlets:
                outlet.drain()
            with suppress(RuntimeError):  # nobody waits any more, and the loop is closed
                loop.call_soon_threadsafe(drained.set)

        # A thread of the loop's executor would be waited for at its end, however long that takes.
        threading.Thread(target=drain, name="loopline-telemetry", daemon=True).start()
        try:
            await asyncio.wait_for(drained.wait(), self._drain_seconds)
        except TimeoutError:
            self._once.tell()
            for outlet in self._outlets:
                outlet.give_up()


class _Once:
    """Says once that the receiver takes nothing."""

    def __init__(self) -> None:
        self._told = False

    def tell(self) -> None:
        if not self._told:
            self._told = True
            _logger.warning(
                "telemetry cannot be sent, and what cannot be sent is lost: no OTLP receiver takes it "
                "at OTEL_EXPORTER_OTLP_ENDPOINT (http://localhost:4318 by default)"
            )


@contextmanager
def _quiet() -> Generator[None, None, None]:
    token = _sending.set(True)
    try:
        yield
    finally:
        _sending.reset(token)


def _not_sending(record: logging.LogRecord) -> bool:
    """Return whether a record is none of an exporter's own sending, which is reported once."""
    del record
    return not _sending.get()


class _SpanExporter(OTLPSpanExporter):
    """An exporter of spans that reports its first failure."""

    def __init__(self, once: _Once) -> None:
        super().__init__()
        self._once = once

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with _quiet():
            sent = super().export(spans)
        if sent is not SpanExportResult.SUCCESS:
            self._once.tell()
        return sent

    def shutdown(self) -> None:
        sdk: Any = super()
        with _quiet():
            sdk.shutdown()


class _MetricExporter(OTLPMetricExporter):
    """Sends metrics, and says once if it cannot."""

    def __init__(self, once: _Once) -> None:
        super().__init__()
        self._once = once

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        sdk: Any = super()
        with _quiet():
            sent: MetricExportResult = sdk.export(metrics_data, timeout_millis, **kwargs)
        if sent is not MetricExportResult.SUCCESS:
            self._once.tell()
        return sent

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        sdk: Any = super()
        with _quiet():
            sdk.shutdown(timeout_millis, **kwargs)


class _Given(IdGenerator):
    """Gives each span the ids that it was made with."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Spans:
    """Where spans go."""

    def __init__(self, resource: Resource, once: _Once) -> None:
        self._ids = _Given()
        self._exporter = _SpanExporter(once)
        self._provider = TracerProvider(
            resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer(SCOPE)

    def take(self, made: FinishedSpan) -> None:
        """Put the span into the queue of what is to be sent."""
        self._ids.trace_id, self._ids.span_id = int(made.trace_id, 16), int(made.span_id, 16)
        span = self._tracer.start_span(
            made.name,
            context=self._above(made),
            kind=_KINDS[made.kind],
            attributes=made.attributes,
            start_time=_nanoseconds(made.start),
        )
        if made.failed:
            span.set_status(trace.StatusCode.ERROR)
        span.end(end_time=_nanoseconds(made.end))

    def drain(self) -> None:
        """Send what is in the queue."""
        self._provider.shutdown()

    def give_up(self) -> None:
        """Try no more."""
        self._exporter.shutdown()

    def _above(self, made: FinishedSpan) -> Context:
        """Return the context of a span: its parent, sampled if its trace is."""
        if made.parent_id is None:
            return Context()
        trace_id = int(made.trace_id, 16)
        sampled = self._provider.sampler.should_sample(None, trace_id, made.name)
        dropped = sampled.decision is Decision.DROP
        flags = trace.TraceFlags.DEFAULT if dropped else trace.TraceFlags.SAMPLED
        parent = trace.SpanContext(
            trace_id, int(made.parent_id, 16), is_remote=False, trace_flags=trace.TraceFlags(flags)
        )
        return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())


class _Metrics:
    """Where measurements go."""

    def __init__(self, resource: Resource, once: _Once) -> None:
        self._exporter = _MetricExporter(once)
        reader = PeriodicExportingMetricReader(self._exporter)
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter(SCOPE)
        self._tokens = self._histogram(genai.TOKEN_USAGE, "{token}", genai.TOKENS)
        self._rounds = self._histogram(genai.ROUNDS, "{round}", genai.CALLS)
        self._operations = self._histogram(genai.OPERATION_DURATION, "s", genai.SECONDS)
        self._cost = self._meter.create_counter(genai.COST, "USD")

    def take(self, span: FinishedSpan) -> None:
        """Measure the span."""
        said = span.attributes
        dimensions = {name: said[name] for name in _DIMENSIONS if name in said}
        self._operations.record((span.end - span.start).total_seconds(), dimensions)
        match said[genai.OPERATION]:
            case genai.CHAT:
                self._take_used(span, dimensions)
            case genai.INVOKE_AGENT:
                ended = {**dimensions, genai.EXIT_REASON: said[genai.EXIT_REASON]}
                self._rounds.record(_number(span, genai.ROUNDS), ended)
            case _:
                pass

    def _take_used(self, span: FinishedSpan, dimensions: dict[str, Any]) -> None:
        if genai.INPUT_TOKENS not in span.attributes:
            return  # nobody told what it used
        for kind, name in (("input", genai.INPUT_TOKENS), ("output", genai.OUTPUT_TOKENS)):
            self._tokens.record(_number(span, name), {**dimensions, genai.TOKEN_TYPE: kind})
        if genai.COST in span.attributes:
            self._cost.add(_number(span, genai.COST), dimensions)

    def _histogram(self, name: str, unit: str, bounds: Sequence[float]) -> metrics.Histogram:
        return self._meter.create_histogram(
            name, unit, explicit_bucket_boundaries_advisory=list(bounds)
        )

    def drain(self) -> None:
        """Send what was measured."""
        self._provider.shutdown()

    def give_up(self) -> None:
        """Try no more."""
        self._exporter.shutdown()


_DIMENSIONS = (
    *(genai.OPERATION, genai.PROVIDER, genai.REQUEST_MODEL, genai.RESPONSE_MODEL),
    *(genai.AGENT, genai.TOOL, genai.ERROR),
)
"""The attributes of a span by which its measurements are told apart."""


def _number(span: FinishedSpan, name: str) -> int | float:
    value = span.attributes[name]
    assert isinstance(value, int | float)
    return value


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _resource() -> Resource:
    """Return the resource of `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, else `loopline`."""
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: SCOPE}))
    return resource
