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
from importlib.metadata import version
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

from loopline.events import ObservedTurn
from loopline.telemetry import spans
from loopline.telemetry.spans import FinishedSpan, TurnSpans
from loopline.timeline import Block

SCOPE = "loopline"
DRAIN_SECONDS = 5.0
"""How long closing waits until the remaining data is sent."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = {"internal": trace.SpanKind.INTERNAL, "client": trace.SpanKind.CLIENT}

_logger = logging.getLogger("loopline")
_sending: ContextVar[bool] = ContextVar("_sending", default=False)


class Otlp:
    """An observer that sends traces and metrics of turns.

    With `content`, spans include messages, arguments and results.
    """

    def __init__(self, *, content: bool = False, traces: bool = True, metrics: bool = True) -> None:
        self._content = content
        self._outlets: list[_Spans | _Metrics] = []
        self._failure = _FailureReport()
        resource = _resource()
        for exporter in (OTLPSpanExporter, OTLPMetricExporter):
            logging.getLogger(exporter.__module__).addFilter(_not_sending)
        if traces:
            self._outlets.append(_Spans(resource, self._failure))
        if metrics:
            self._outlets.append(_Metrics(resource, self._failure))

    def begin(self, turn: ObservedTurn, blocks: Sequence[Block]) -> Callable[[Block], None]:
        """Return a function that sends the spans of the turn that end with a new block.

        The spans that end with the earlier `blocks` are not sent.
        """
        spans = TurnSpans(turn, content=self._content)
        for block in blocks:
            spans.take(block)

        def send(block: Block) -> None:
            for span in spans.take(block):
                for outlet in self._outlets:
                    outlet.take(span)

        return send

    async def close(self) -> None:
        """Send the remaining data for at most `DRAIN_SECONDS`; data that the receiver has not accepted by then is lost."""
        loop = asyncio.get_running_loop()
        drained = asyncio.Event()

        def drain() -> None:
            with _quiet():
                for outlet in self._outlets:
                    outlet.provider.shutdown()
            with suppress(RuntimeError):  # the loop is closed if the wait timed out
                loop.call_soon_threadsafe(drained.set)

        # The interpreter would wait for a thread of the loop's executor at exit, without a limit.
        threading.Thread(target=drain, name="loopline-telemetry", daemon=True).start()
        try:
            await asyncio.wait_for(drained.wait(), DRAIN_SECONDS)
        except TimeoutError:
            self._failure.report()
            with _quiet():
                for outlet in self._outlets:
                    outlet.exporter.shutdown()


class _FailureReport:
    """The warning that telemetry cannot be sent, which is logged once."""

    def __init__(self) -> None:
        self._is_logged = False

    def report(self) -> None:
        """Log the warning at the first call, and return at once at later calls."""
        if not self._is_logged:
            self._is_logged = True
            _logger.warning(
                "telemetry cannot be sent and is lost: no OTLP receiver accepts it "
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
    """Return False for log records that an exporter writes while it sends: its failure is reported once."""
    del record
    return not _sending.get()


class _SpanExporter(OTLPSpanExporter):
    """An exporter of spans that reports its first failure."""

    def __init__(self, failure: _FailureReport) -> None:
        super().__init__()
        self._failure = failure

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the spans without the SDK's own log messages, and return its result; report the first failure."""
        with _quiet():
            sent = super().export(spans)
        if sent is not SpanExportResult.SUCCESS:
            self._failure.report()
        return sent


class _MetricExporter(OTLPMetricExporter):
    """An exporter of metrics that reports its first failure."""

    def __init__(self, failure: _FailureReport) -> None:
        super().__init__()
        self._failure = failure

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Send the metrics without the SDK's own log messages, and return its result; report the first failure."""
        sdk: Any = super()  # its method has no type annotations
        with _quiet():
            sent: MetricExportResult = sdk.export(metrics_data, timeout_millis, **kwargs)
        if sent is not MetricExportResult.SUCCESS:
            self._failure.report()
        return sent

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        sdk: Any = super()
        sdk.shutdown(timeout_millis, **kwargs)


class _FinishedIds(IdGenerator):
    """An id generator that returns the ids of the finished span that is sent next."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Spans:
    """The queue of spans in `provider`, which `exporter` sends."""

    def __init__(self, resource: Resource, failure: _FailureReport) -> None:
        self._ids = _FinishedIds()
        self.exporter = _SpanExporter(failure)
        self.provider = TracerProvider(
            resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self.provider.add_span_processor(BatchSpanProcessor(self.exporter))
        self._tracer = self.provider.get_tracer(SCOPE, version("loopline"), spans.SCHEMA_URL)

    def take(self, finished: FinishedSpan) -> None:
        """Add a finished span to the queue of the exporter, with its own ids and times."""
        self._ids.trace_id = int(finished.trace_id, 16)
        self._ids.span_id = int(finished.span_id, 16)
        span = self._tracer.start_span(
            finished.name,
            context=self._parent_context(finished),
            kind=_KINDS[finished.kind],
            attributes=finished.attributes,
            start_time=_nanoseconds(finished.start),
        )
        if finished.failed:
            span.set_status(trace.StatusCode.ERROR)
        span.end(end_time=_nanoseconds(finished.end))

    def _parent_context(self, finished: FinishedSpan) -> Context:
        """Return the context with the span's parent, marked as sampled if the sampler records its trace."""
        if finished.parent_id is None:
            return Context()
        trace_id = int(finished.trace_id, 16)
        parent_id = int(finished.parent_id, 16)
        sampled = self.provider.sampler.should_sample(None, trace_id, finished.name)
        dropped = sampled.decision is Decision.DROP
        flags = trace.TraceFlags.DEFAULT if dropped else trace.TraceFlags.SAMPLED
        parent = trace.SpanContext(
            trace_id, parent_id, is_remote=False, trace_flags=trace.TraceFlags(flags)
        )
        return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())


class _Metrics:
    """The measurements in `provider`, which `exporter` sends."""

    def __init__(self, resource: Resource, failure: _FailureReport) -> None:
        self.exporter = _MetricExporter(failure)
        reader = PeriodicExportingMetricReader(self.exporter)
        self.provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._meter = self.provider.get_meter(SCOPE, version("loopline"), spans.SCHEMA_URL)
        self._tokens = self._histogram(spans.TOKEN_USAGE, "{token}", spans.TOKENS)
        self._rounds = self._histogram(spans.ROUNDS, "{round}", spans.CALLS)
        self._operations = self._histogram(spans.OPERATION_DURATION, "s", spans.SECONDS)
        self._cost = self._meter.create_counter(spans.COST, "USD")

    def take(self, span: FinishedSpan) -> None:
        """Record the duration of the span, its tokens and cost, or the rounds of its turn."""
        attributes = span.attributes
        dimensions = {name: attributes[name] for name in _DIMENSIONS if name in attributes}
        self._operations.record((span.end - span.start).total_seconds(), dimensions)
        match attributes[spans.OPERATION]:
            case spans.CHAT:
                self._record_usage(span, dimensions)
            case spans.INVOKE_AGENT:
                exit_reason = {spans.EXIT_REASON: attributes[spans.EXIT_REASON]}
                self._rounds.record(_number(span, spans.ROUNDS), {**dimensions, **exit_reason})
            case _:
                pass

    def _record_usage(self, span: FinishedSpan, dimensions: dict[str, Any]) -> None:
        """Record the input and output tokens and the cost of a span, if it has them."""
        if spans.INPUT_TOKENS not in span.attributes:
            return  # its usage is unknown
        for kind, name in (("input", spans.INPUT_TOKENS), ("output", spans.OUTPUT_TOKENS)):
            self._tokens.record(_number(span, name), {**dimensions, spans.TOKEN_TYPE: kind})
        if spans.COST in span.attributes:
            self._cost.add(_number(span, spans.COST), dimensions)

    def _histogram(self, name: str, unit: str, bounds: Sequence[float]) -> metrics.Histogram:
        return self._meter.create_histogram(
            name, unit, explicit_bucket_boundaries_advisory=list(bounds)
        )


_DIMENSIONS = (
    *(spans.OPERATION, spans.PROVIDER, spans.REQUEST_MODEL, spans.RESPONSE_MODEL),
    *(spans.AGENT, spans.TOOL, spans.ERROR),
)
"""The attributes of a span that its measurements have as dimensions."""


def _number(span: FinishedSpan, name: str) -> int | float:
    value = span.attributes[name]
    assert isinstance(value, int | float)
    return value


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _resource() -> Resource:
    """Create the resource from `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`; its default name is `loopline`."""
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: SCOPE}))
    return resource
