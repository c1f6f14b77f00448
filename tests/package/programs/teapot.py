"""A typed bundle in one file, and a stored turn of it with everything that Loopline needs other packages for."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from loopline import Bundle, run_sync, tool
from loopline.testing import Call, Say, ScriptedModel


class Steeping(BaseModel):
    """How long and how hot."""

    minutes: int
    degrees: int


@tool(effect="read")
def steep(kind: Literal["green", "black"]) -> Steeping:
    """Say how a kind of tea is steeped."""
    return Steeping(minutes=3, degrees=80) if kind == "green" else Steeping(minutes=4, degrees=100)


bundle = Bundle(
    id="teapot",
    instructions="You help people to make tea.",
    tools=[steep],
    knowledge={"repo": ".", "docs_root": "docs"},
)

if __name__ == "__main__":
    model = ScriptedModel(
        [
            Call("react.search_knowledge", query="old leaves"),
            Call("teapot.steep", kind="purple"),
            Call("teapot.steep", kind="green"),
            Say('{"minutes": 3, "degrees": 80}'),
        ],
        json_mode=True,
    )
    result = run_sync(
        bundle,
        "How long?",
        store="sqlite:///talk.db",
        model=model,
        attachments=["leaf.pdf"],
        output_type=Steeping,
    )
    assert result.output == Steeping(minutes=3, degrees=80), result
    last = str(model.requests[-1])
    for seen in ("A leaf of sencha.", "Old leaves are bitter.", "'purple'", '"degrees":80'):
        assert seen in last, (seen, last)
