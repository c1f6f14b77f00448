"""How many tokens a text may cost, before any provider has said."""

from __future__ import annotations

import string

_PLAIN = (string.ascii_letters + " ").encode()


def estimate(text: str) -> int:
    """An estimate on the safe side: four letters or spaces to a token, and two bytes of all else.

    Digits, punctuation and other scripts are what tokenizers split finest; a Chinese character of
    three bytes counts for one and a half.
    """
    data = text.encode("utf-8", "surrogatepass")
    other = len(data.translate(None, _PLAIN))
    return -(-(len(data) - other) // 4) + -(-other // 2)
