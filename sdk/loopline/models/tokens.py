"""How many tokens a text may cost, before any provider has said."""

from __future__ import annotations

CHARACTERS_PER_TOKEN = 4


def estimate(text: str) -> int:
    """An estimate: a token for every four characters begun."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)
