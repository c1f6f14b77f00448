"""An OTLP receiver on this machine: an HTTP server that keeps what it is sent."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.local_http import Answering, http_server

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
