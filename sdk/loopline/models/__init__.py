"""The deciders: what a model is asked, what it replies, and the port to it."""

from loopline.models.json import (
    Json,
    JsonObject,
    dumps,
    extract_json,
    well_formed,
    well_formed_json,
)
from loopline.models.model import Abilities, ClosingModel, Model
from loopline.models.prompt import (
    AssistantMessage,
    Message,
    Options,
    Prompt,
    Purpose,
    Reply,
    StopReason,
    TextDelta,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)

__all__ = [
    "Abilities",
    "AssistantMessage",
    "ClosingModel",
    "Json",
    "JsonObject",
    "Message",
    "Model",
    "Options",
    "Prompt",
    "Purpose",
    "Reply",
    "StopReason",
    "TextDelta",
    "ToolCall",
    "ToolMessage",
    "ToolSpec",
    "Usage",
    "UserMessage",
    "dumps",
    "extract_json",
    "well_formed",
    "well_formed_json",
]
