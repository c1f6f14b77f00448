"""Tools that a bundle may choose by name: arithmetic, the web, and knowledge spaces."""

from loopline.tools.builtin.calculator import Calculator, calculate
from loopline.tools.builtin.knowledge_search import KnowledgeSearchTool
from loopline.tools.builtin.web import (
    MemoryWeb,
    WebFetch,
    WebFetchTool,
    WebHit,
    WebPage,
    WebSearch,
    WebSearchTool,
)

__all__ = [
    "Calculator",
    "KnowledgeSearchTool",
    "MemoryWeb",
    "WebFetch",
    "WebFetchTool",
    "WebHit",
    "WebPage",
    "WebSearch",
    "WebSearchTool",
    "calculate",
]
