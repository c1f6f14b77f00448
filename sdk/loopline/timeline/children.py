"""Names of child runs: whose call began one, and how deep it stands.

The n-th child of call `c7` of `talk` is called `talk~c7`, then `talk~c7.2`, `talk~c7.3`, … No
conversation of a person's can be given such a name.
"""

from __future__ import annotations

import re

_CHILD = re.compile(r"(.+)~c[0-9.]+", re.DOTALL)


def child_name(parent: str, call_id: str, n: int) -> str:
    """What the n-th child of a call is called, counted from 1."""
    return f"{parent}~{call_id}" if n == 1 else f"{parent}~{call_id}.{n}"


def is_child_of(name: str, call_id: str) -> bool:
    """Whether a call of that id can have begun a child run of that name."""
    first, _, number = name.rpartition(".")
    return name.endswith(f"~{call_id}") or (number.isdecimal() and first.endswith(f"~{call_id}"))


def parent_name(name: str) -> str | None:
    """The conversation whose call began this one; None when it is no child run."""
    found = _CHILD.fullmatch(name)
    return None if found is None else found[1]


def depth(name: str) -> int:
    """How many calls stand above: 0 for a conversation of a person's."""
    above = parent_name(name)
    return 0 if above is None else depth(above) + 1
