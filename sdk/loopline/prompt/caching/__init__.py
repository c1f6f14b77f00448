"""What a provider's prompt cache would have read of the requests of a conversation, and why not more.

Nothing here asks a provider: the rules are those of the vendors' pages, each named with the day it
was read beside the rules it gave.
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
