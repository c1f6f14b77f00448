"""A simulator of providers' prompt caches: what they would have read of past requests, and why not more.

It asks no provider: the rules are those of the vendors' pages, each cited with the day it was read.
"""

from loopline.prompt.caching.rules import (
    CacheLimit,
    CacheOutcome,
    CacheRules,
    Difference,
    Part,
    PartKind,
    SentRequest,
    first_difference,
)
from loopline.prompt.caching.simulation import (
    NOT_RECORDED,
    CacheReport,
    CacheRow,
    Miss,
    MissReason,
    simulate,
)
from loopline.prompt.caching.vendor_caches import (
    MINIMUM_TOKENS,
    AnthropicCache,
    OpenAIBreakpointCache,
    OpenAICache,
    minimum_tokens,
)

__all__ = [
    "MINIMUM_TOKENS",
    "NOT_RECORDED",
    "AnthropicCache",
    "CacheLimit",
    "CacheOutcome",
    "CacheReport",
    "CacheRow",
    "CacheRules",
    "Difference",
    "Miss",
    "MissReason",
    "OpenAIBreakpointCache",
    "OpenAICache",
    "Part",
    "PartKind",
    "SentRequest",
    "first_difference",
    "minimum_tokens",
    "simulate",
]
