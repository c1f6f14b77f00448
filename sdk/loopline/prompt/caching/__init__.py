"""What a provider's prompt cache would have read of the requests of a conversation, and why not more.

Nothing here asks a provider: the rules are those of the vendors' pages, each named with the day it
was read beside the rules it gave.
"""

from loopline.prompt.caching.anthropic import MINIMUM_TOKENS, AnthropicCache, minimum_tokens
from loopline.prompt.caching.openai import OpenAIBreakpointCache, OpenAICache
from loopline.prompt.caching.report import (
    NOT_RECORDED,
    CacheReport,
    CacheRow,
    Miss,
    MissReason,
    simulate,
)
from loopline.prompt.caching.rules import Cached, CacheRules, Limit
from loopline.prompt.caching.sent import Difference, Part, PartKind, Sent, first_difference

__all__ = [
    "MINIMUM_TOKENS",
    "NOT_RECORDED",
    "AnthropicCache",
    "CacheReport",
    "CacheRow",
    "CacheRules",
    "Cached",
    "Difference",
    "Limit",
    "Miss",
    "MissReason",
    "OpenAIBreakpointCache",
    "OpenAICache",
    "Part",
    "PartKind",
    "Sent",
    "first_difference",
    "minimum_tokens",
    "simulate",
]
