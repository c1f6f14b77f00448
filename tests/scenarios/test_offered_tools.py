"""The parts of a prompt that go with the offered tools."""

from __future__ import annotations

from loopline import tool
from loopline.prompt import NATIVE, protocol
from loopline.react.offered_tools import KEPT_TEXTS, ToolOffering
from loopline.tools import Tool, ToolSet


def described(text: str) -> Tool:
    """A tool with that description."""

    def look() -> str:
        return text

    look.__doc__ = text
    return tool(effect="read")(look).bind("shop")


def test_the_text_of_tools_is_never_that_of_tools_that_are_gone() -> None:
    """Texts are kept by the identity of the tools, and the address of an object that is gone is used again."""
    for number in range(4 * KEPT_TEXTS):
        offering = ToolOffering.of(ToolSet([described(f"Look {number}.")]), "", protocol(NATIVE))
        assert f'"Look {number}."' in offering.tools_text
