"""The screen as a picture: an SVG that needs nothing from anywhere else, neither font nor host."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme
from rich.text import Text

WIDTH = 100

THEME = TerminalTheme(
    background=(22, 27, 34),
    foreground=(214, 220, 228),
    normal=[
        (72, 79, 88),
        (255, 123, 114),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (118, 210, 222),
        (214, 220, 228),
    ],
    bright=[
        (139, 148, 158),
        (255, 161, 152),
        (126, 231, 135),
        (242, 204, 96),
        (165, 214, 255),
        (226, 197, 255),
        (164, 230, 238),
        (240, 246, 252),
    ],
)

# The layout is Rich's own (rich/_export_format.py), without its web font.
_FORMAT = """\
<svg class="terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
  <style>
    .{unique_id}-matrix {{
      font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
      font-size: {char_height}px;
      line-height: {line_height}px;
      font-variant-east-asian: full-width;
    }}
    .{unique_id}-title {{
      font-size: 18px;
      font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
    }}
    {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix" xml:space="preserve">
      {matrix}
    </g>
  </g>
</svg>
"""


def drawn(shown: Iterable[RenderableType], title: str) -> str:
    """The SVG of a terminal that shows all this under its title."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        highlight=False,
        legacy_windows=False,
    )
    for renderable in (Text(), *shown, Text()):
        console.print(renderable)
    return console.export_svg(title=title, theme=THEME, code_format=_FORMAT, unique_id="loopline")
