"""Tools that a bundle may choose by name: the calculator, web search and knowledge spaces."""

from loopline.tools.builtin.calculator import calculate

__all__ = ["calculate"]
