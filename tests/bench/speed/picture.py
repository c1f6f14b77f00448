"""A picture of what was measured, for a page: a panel a row, a bar a subject, on a scale of powers of ten."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log10
from xml.sax.saxutils import escape

from tests.bench.speed import results as speed_results
from tests.bench.speed.subjects import FLOOR, NAMES

PANELS = ("memory_500", "durable_500", "crowd")
WIDTH, LEFT, RIGHT, BAR, STEP, HEAD = 760, 150, 90, 14, 22, 44
_STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600 }
.faint { fill: #6e7781; font-size: 11px }
.ours { fill: #1f6feb }
.peer { fill: #afb8c1 }
.floor { fill: #d8dee4 }
.spread, .grid { stroke: #57606a }
.grid { stroke-opacity: .2 }
</style>"""


def picture(results: speed_results.SpeedResults) -> str:
    """Draw the panels of all rows that were measured."""
    panels = list[str]()
    top = 8
    for row in PANELS:
        if row in results.samples:
            bars = sorted(figures(results, row).items(), key=lambda bar: bar[1][1])
            bars = bars[::-1] if speed_results.is_per_second(row) else bars
            panels += panel(row, dict(bars), top)
            top += HEAD + STEP * len(bars) + 26
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    background = f'<rect width="{WIDTH}" height="{top}" fill="#fff"/>'
    return "\n".join([head, _STYLE, background, *panels, "</svg>", ""])


def figures(results: speed_results.SpeedResults, row: str) -> dict[str, tuple[float, float, float]]:
    """Return the lowest, the median and the highest figure of each subject of a row."""
    return {
        subject: speed_results.spread([speed_results.figure(row, sample) for sample in samples])
        for subject, samples in results.samples[row].items()
    }


def panel(row: str, bars: dict[str, tuple[float, float, float]], top: int) -> Iterator[str]:
    better, unit = (
        ("more", "rounds/s") if speed_results.is_per_second(row) else ("less", "ms a round")
    )
    yield f'<text class="title" x="8" y="{top + 18}">{escape(speed_results.TITLES[row])}</text>'
    yield f'<text class="faint" x="{WIDTH - 8}" y="{top + 18}" text-anchor="end">{unit}, {better} is better</text>'
    first = floor(log10(min(low for low, _, _ in bars.values())))
    last = max(ceil(log10(max(high for _, _, high in bars.values()))), first + 1)

    def x(value: float) -> float:
        share = (log10(value) - first) / (last - first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    bottom = top + HEAD + STEP * len(bars)
    for power in range(first, last + 1):
        at = x(10.0**power)
        yield f'<line class="grid" x1="{at}" x2="{at}" y1="{top + 30}" y2="{bottom}"/>'
        yield f'<text class="faint" x="{at}" y="{bottom + 14}" text-anchor="middle">{10.0**power:g}</text>'
    for number, (subject, (low, middle, high)) in enumerate(bars.items()):
        y = top + HEAD - 8 + STEP * number
        yield f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(NAMES.get(subject, subject))}</text>'
        width = round(max(x(middle) - LEFT, 1), 1)
        kind = {"loopline": "ours", FLOOR: "floor"}.get(subject, "peer")
        yield f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width}" height="{BAR}"/>'
        yield f'<line class="spread" x1="{x(low)}" x2="{x(high)}" y1="{y + 7}" y2="{y + 7}"/>'
        yield f'<text class="faint" x="{x(high) + 6}" y="{y + 11}">{speed_results.written(middle)}</text>'
