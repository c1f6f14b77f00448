"""Tools that a bundle may choose by name: arithmetic, the web, and knowledge spaces."""

from loopline.tools.builtin.calculator import calculate

__all__ = ["calculate"]
