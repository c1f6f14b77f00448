"""Bundles: the classes for authors, and how bundles are loaded, configured and run."""

from loopline.bundle.bundle import Bundle
from loopline.bundle.communicator import ChatCommunicator
from loopline.bundle.conversation_store import ContextRAGClient, ConversationStore, StoredArtifact
from loopline.bundle.descriptors import (
    is_alias,
    load_mcp_selections,
    load_runtimes,
    load_skills,
    load_tools,
)
from loopline.bundle.importer import blame
from loopline.bundle.load import (
    Available,
    LoadedBundle,
    available,
    build_call_problems,
    bundle_agents,
    descriptor_modules,
    load,
    names_every_module,
)
from loopline.bundle.loop_checks import misspelt_attributes
from loopline.bundle.mcp_config import (
    MCP_FILE,
    McpConnectionSettings,
    McpOAuthSettings,
    McpSelection,
    McpServerEntry,
    read_mcp_file,
)
from loopline.bundle.open_bundle import OpenBundle, call_load_hook, make_deps
from loopline.bundle.prepared_run import (
    LOOP_TOOLS,
    ApplicationHostingService,
    HostFile,
    McpTools,
    PreparedRun,
    RunLoop,
    Services,
    WebPorts,
    commits_of,
    no_programs,
)
from loopline.bundle.properties import (
    BACKENDS,
    EXECUTION,
    PROGRAMS_TOOLS,
    LoopSettings,
    Properties,
    Setting,
    SkillSearch,
    TypedValue,
    loop_settings,
    merged,
    parse_setting,
    tool_properties,
)
from loopline.bundle.restrictions import (
    ANY_TOOL,
    check_restrictions,
    tool_settings,
    unknown_skills,
)
from loopline.bundle.template import Installation, create
from loopline.bundle.workflow import BaseWorkflow

__all__ = [
    "ANY_TOOL",
    "BACKENDS",
    "EXECUTION",
    "LOOP_TOOLS",
    "MCP_FILE",
    "PROGRAMS_TOOLS",
    "ApplicationHostingService",
    "Available",
    "BaseWorkflow",
    "Bundle",
    "ChatCommunicator",
    "ContextRAGClient",
    "ConversationStore",
    "HostFile",
    "Installation",
    "LoadedBundle",
    "LoopSettings",
    "McpConnectionSettings",
    "McpOAuthSettings",
    "McpSelection",
    "McpServerEntry",
    "McpTools",
    "OpenBundle",
    "PreparedRun",
    "Properties",
    "RunLoop",
    "Services",
    "Setting",
    "SkillSearch",
    "StoredArtifact",
    "TypedValue",
    "WebPorts",
    "available",
    "blame",
    "build_call_problems",
    "bundle_agents",
    "call_load_hook",
    "check_restrictions",
    "commits_of",
    "create",
    "descriptor_modules",
    "is_alias",
    "load",
    "load_mcp_selections",
    "load_runtimes",
    "load_skills",
    "load_tools",
    "loop_settings",
    "make_deps",
    "merged",
    "misspelt_attributes",
    "names_every_module",
    "no_programs",
    "parse_setting",
    "read_mcp_file",
    "tool_properties",
    "tool_settings",
    "unknown_skills",
]
