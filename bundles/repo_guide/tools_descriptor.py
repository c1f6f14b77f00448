"""The tools of the guide: none of its own, for the loop plans, searches and reads."""

from __future__ import annotations

TOOLS_SPECS: list[dict[str, str]] = []
