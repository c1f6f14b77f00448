"""Tools: what an agent can call, what a call returns, and the tools of the loop itself."""

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
from loopline.tools.builtin.knowledge_search import KnowledgeSearch, SearchTool
from loopline.tools.invocation import (
    AskUser,
    Call,
    ChildTask,
    Deps,
    Emission,
    ToolContext,
    custom_event,
)
from loopline.tools.outcome import Outcome, Output, Section
from loopline.tools.parameters import unmet
from loopline.tools.timeline_tools import EDITABLE_TAIL_TOKENS, HideTool, PlanTool, ReadTool
from loopline.tools.tool import BoundTool, Tool, ToolFunction, check_deps, tool
from loopline.tools.tool_selection import (
    REQUEST_TOOLS,
    RequestTools,
    Selection,
    brought,
    catalogue,
    select,
    selected,
)
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
