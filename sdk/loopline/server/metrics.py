"""The counters of a server, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPMethod

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
"""The upper bounds of the histogram of response times, in seconds."""


@dataclass(slots=True)
class ServerMetrics:
    """Counters since the start of the server."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])
    seconds: Counter[float] = field(default_factory=Counter[float])
    seconds_sum: float = 0.0
    turns: Counter[str] = field(default_factory=Counter[str])
    recovered_turns: int = 0

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response, and the seconds until its first byte. All methods that HTTP does not define count as `other`."""
        name = method if method in HTTPMethod.__members__ else "other"
        self.requests[name, route, status] += 1
        self.seconds_sum += seconds
        for bound in BUCKETS:
            if seconds <= bound:
                self.seconds[bound] += 1

    def text(self, gauges: Mapping[str, int], open_turns: Mapping[str, int]) -> str:
        """Return all metrics as text.

        `gauges` are current values by name, and `open_turns` the numbers of open turns of the store by state.
        """
        lines = ["# TYPE loopline_requests_total counter"]
        for (method, route, status), count in sorted(self.requests.items()):
            labels = f'method="{method}",route="{_escape(route)}",status="{status}"'
            lines.append(f"loopline_requests_total{{{labels}}} {count}")
        lines.append("# TYPE loopline_response_seconds histogram")
        total = sum(self.requests.values())
        for bound in BUCKETS:
            lines.append(f'loopline_response_seconds_bucket{{le="{bound}"}} {self.seconds[bound]}')
        lines.append(f'loopline_response_seconds_bucket{{le="+Inf"}} {total}')
        lines.append(f"loopline_response_seconds_sum {self.seconds_sum:.6f}")
        lines.append(f"loopline_response_seconds_count {total}")
        lines.append("# TYPE loopline_turns_total counter")
        for reason, count in sorted(self.turns.items()):
            lines.append(f'loopline_turns_total{{exit_reason="{reason}"}} {count}')
        lines.append("# TYPE loopline_recovered_turns_total counter")
        lines.append(f"loopline_recovered_turns_total {self.recovered_turns}")
        lines.append("# TYPE loopline_open_turns gauge")
        for state, count in sorted(open_turns.items()):
            lines.append(f'loopline_open_turns{{state="{state}"}} {count}')
        for name, value in gauges.items():
            lines += [f"# TYPE loopline_{name} gauge", f"loopline_{name} {value}"]
        return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
