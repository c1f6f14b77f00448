"""Tools: what an agent can call, what a call returns, and the tools of the loop itself."""

from loopline.tools.builtin.calculator import Calculator
from loopline.tools.builtin.execution import ExecutionSettings, ExecutionTool
from loopline.tools.builtin.knowledge_search import (
    NO_ANSWER,
    FilteredSearch,
    KnowledgeSearch,
    KnowledgeSearchTool,
    SearchTool,
    takes_filters,
)
from loopline.tools.builtin.memory_search import MemorySearchTool
from loopline.tools.builtin.user_memory import MemoryTool
from loopline.tools.builtin.web import (
    MemoryWeb,
    WebFetch,
    WebFetchTool,
    WebHit,
    WebPage,
    WebSearch,
    WebSearchTool,
)
from loopline.tools.invocation import (
    DELEGATE,
    ApprovalRequired,
    AskUser,
    ChildBodies,
    ChildTask,
    Deps,
    Emission,
    NoProxy,
    ProxiedAnswer,
    ToolContext,
    ToolInvocation,
    ToolProxy,
    custom_event,
)
from loopline.tools.mcp_tool import (
    MCP,
    AskPerson,
    McpFile,
    McpResult,
    McpServer,
    McpTool,
    McpToolSpec,
)
from loopline.tools.outcome import Outcome, Output, ResultSection, tool_failures
from loopline.tools.parameters import deps_problem
from loopline.tools.timeline_tools import EDITABLE_TAIL_TOKENS, HideTool, PlanTool, ReadTool
from loopline.tools.tool import (
    BoundTool,
    RerunnableTool,
    Tool,
    ToolFunction,
    check_deps,
    tool,
)
from loopline.tools.tool_selection import (
    REQUEST_TOOLS,
    SELECT_ABOVE,
    RequestTools,
    ToolSelection,
    catalogue,
    requested_tools,
    select_tools,
    tools_in_reply,
)
from loopline.tools.toolset import ProviderNames, ToolSet, provider_names
from loopline.tools.workspace_history import CheckoutTool, PullTool
from loopline.tools.workspace_search import SearchFilesTool
from loopline.tools.workspace_tools import PatchTool, WriteTool

__all__ = [
    "DELEGATE",
    "EDITABLE_TAIL_TOKENS",
    "MCP",
    "NO_ANSWER",
    "REQUEST_TOOLS",
    "SELECT_ABOVE",
    "ApprovalRequired",
    "AskPerson",
    "AskUser",
    "BoundTool",
    "Calculator",
    "CheckoutTool",
    "ChildBodies",
    "ChildTask",
    "Deps",
    "Emission",
    "ExecutionSettings",
    "ExecutionTool",
    "FilteredSearch",
    "HideTool",
    "KnowledgeSearch",
    "KnowledgeSearchTool",
    "McpFile",
    "McpResult",
    "McpServer",
    "McpTool",
    "McpToolSpec",
    "MemorySearchTool",
    "MemoryTool",
    "MemoryWeb",
    "NoProxy",
    "Outcome",
    "Output",
    "PatchTool",
    "PlanTool",
    "ProviderNames",
    "ProxiedAnswer",
    "PullTool",
    "ReadTool",
    "RequestTools",
    "RerunnableTool",
    "ResultSection",
    "SearchFilesTool",
    "SearchTool",
    "Tool",
    "ToolContext",
    "ToolFunction",
    "ToolInvocation",
    "ToolProxy",
    "ToolSelection",
    "ToolSet",
    "WebFetch",
    "WebFetchTool",
    "WebHit",
    "WebPage",
    "WebSearch",
    "WebSearchTool",
    "WriteTool",
    "catalogue",
    "check_deps",
    "custom_event",
    "deps_problem",
    "provider_names",
    "requested_tools",
    "select_tools",
    "takes_filters",
    "tool",
    "tool_failures",
    "tools_in_reply",
]
