"""The hands of an agent: tools, what comes of them, and the tools of the loop itself."""

from loopline.tools.builtin import (
    Calculator,
    KnowledgeSearchTool,
    MemoryWeb,
    WebFetch,
    WebFetchTool,
    WebHit,
    WebPage,
    WebSearch,
    WebSearchTool,
)
from loopline.tools.call import AskUser, Call, ChildTask, Deps, Emission, ToolContext
from loopline.tools.custom_events import custom_event
from loopline.tools.dependencies import unmet
from loopline.tools.hiding import EDITABLE_TAIL_TOKENS, HideTool
from loopline.tools.outcome import Outcome, Output, Section
from loopline.tools.planning import PlanTool
from loopline.tools.reading import ReadTool
from loopline.tools.searching import KnowledgeSearch, SearchTool
from loopline.tools.selection import (
    REQUEST_TOOLS,
    RequestTools,
    Selection,
    brought,
    catalogue,
    select,
    selected,
)
from loopline.tools.tool import BoundTool, Tool, ToolFunction, check_deps, tool
from loopline.tools.toolset import ToolSet, WireNames, wire_names

__all__ = [
    "EDITABLE_TAIL_TOKENS",
    "REQUEST_TOOLS",
    "AskUser",
    "BoundTool",
    "Calculator",
    "Call",
    "ChildTask",
    "Deps",
    "Emission",
    "HideTool",
    "KnowledgeSearch",
    "KnowledgeSearchTool",
    "MemoryWeb",
    "Outcome",
    "Output",
    "PlanTool",
    "ReadTool",
    "RequestTools",
    "SearchTool",
    "Section",
    "Selection",
    "Tool",
    "ToolContext",
    "ToolFunction",
    "ToolSet",
    "WebFetch",
    "WebFetchTool",
    "WebHit",
    "WebPage",
    "WebSearch",
    "WebSearchTool",
    "WireNames",
    "brought",
    "catalogue",
    "check_deps",
    "custom_event",
    "select",
    "selected",
    "tool",
    "unmet",
    "wire_names",
]
