"""Models in windows so small that the context of a story has to be made to fit."""

from __future__ import annotations

from collections.abc import Sequence

from loopline.models import Prompt
from loopline.testing import ScriptedModel
from loopline.testing.scripted import Entry

TOTAL = 5_000
"""Tokens that a request may have in the small window."""


def small(script: Sequence[Entry], summaries: Sequence[Entry] = ()) -> ScriptedModel:
    return ScriptedModel(
        script, aux={"summary": summaries}, window=TOTAL + 1_000, output_limit=1_000, strict=False
    )


def asked_for_summaries(model: ScriptedModel) -> list[Prompt]:
    return [request for request in model.requests if request.purpose == "summary"]
