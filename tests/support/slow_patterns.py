"""Texts that make a pattern try again from every place, and what a pattern costs over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from random import Random
from time import thread_time
from typing import Any

_parser: Any = import_module("re._parser")
_ALPHABET = [
    *map(chr, range(32, 127)),
    *("\n", "\t", "\r", "\x00", "\x1b", "é", "Ω", "…", "\u2019", "“", "µ", "。", "•"),
]
_LENGTH = 8_000
_NOTICEABLE = 0.002
_SLOW = 0.016
_TIMES = 4
_MOST_WORDS = 24
_ANYTHING = re.compile(".", re.DOTALL)


def leaves(tree: Any, flags: int) -> Iterator[re.Pattern[str]]:
    """Yield a pattern of one character for each place of a parsed pattern that takes one."""
    for kind, argument in tree:
        match str(kind):
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                yield _leaf(kind, argument, flags)
            case "ASSERT" | "ASSERT_NOT":
                yield from leaves(argument[1], flags)
            case _:
                for part in _parts(kind, argument):
                    yield from leaves(part, flags)


def _leaf(kind: Any, argument: Any, flags: int) -> re.Pattern[str]:
    compiler: Any = import_module("re._compiler")
    state = _parser.State()
    state.flags = flags
    state.str = "leaf"
    single = _parser.SubPattern(state, [(kind, argument)])
    found: re.Pattern[str] = compiler.compile(single, flags)
    return found


def classes(found: list[re.Pattern[str]]) -> list[str]:
    """One character for each way of being taken by the places of a pattern."""
    kinds = dict[tuple[bool, ...], str]()
    for char in _ALPHABET:
        kinds.setdefault(tuple(leaf.match(char) is not None for leaf in found), char)
    return list(kinds.values())


def beginnings(tree: Any, flags: int) -> list[str]:
    """Short beginnings of what a pattern takes, one for each place and branch."""
    words, seen = [""], dict[str, None]()
    for kind, argument in tree:
        inner = [
            beginning for part in _parts(kind, argument) for beginning in beginnings(part, flags)
        ]
        seen |= dict.fromkeys(word + more for word in words[:3] for more in inner)
        words = [word + more for word in words for more in _takes(kind, argument, flags)]
        words = list(dict.fromkeys(words))[:_MOST_WORDS]
        seen |= dict.fromkeys(words)
    return [word for word in seen if word]


def _parts(kind: Any, argument: Any) -> list[Any]:
    match str(kind):
        case "BRANCH":
            return list(argument[1])
        case "SUBPATTERN":
            return [argument[3]]
        case "ATOMIC_GROUP":
            return [argument]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return [argument[2]]
        case _:
            return []


def _takes(kind: Any, argument: Any, flags: int) -> list[str]:
    match str(kind):
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
            leaf = _leaf(kind, argument, flags)
            return [next((char for char in _ALPHABET if leaf.match(char)), "")]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            low, high, inner = argument
            times = min(int(low), 3) or int(int(high) > 0)
            return [*([""] if low == 0 else []), *(word * times for word in _whole(inner, flags))]
        case _:
            return [word for part in _parts(kind, argument) for word in _whole(part, flags)] or [""]


def _whole(tree: Any, flags: int) -> list[str]:
    words: list[str] = [""]
    for kind, argument in tree:
        words = [word + more for word in words for more in _takes(kind, argument, flags)]
        words = list(dict.fromkeys(words))[:_MOST_WORDS]
    return words


def attacks(pattern: re.Pattern[str]) -> list[Callable[[int], str]]:
    """Return makers of texts of a length that could cost a pattern more than their length.

    A beginning of what it takes or a few characters are repeated, or one character behind a
    beginning; always with an end that it can hardly take.
    """
    tree = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    flags: int = tree.state.flags
    chars = classes([*leaves(tree, flags), _ANYTHING])[:12]
    begun_beginnings = sorted(beginnings(tree, flags), key=len)
    pairs = ["".join(pair) for pair in product(chars, repeat=2)]
    texts = [f"{beginning}{char}" for beginning in begun_beginnings for char in chars]
    rows = [("", char) for char in chars]
    rows += _sample([("", word) for word in begun_beginnings], 20)
    rows += _sample([*product(begun_beginnings, chars)], 20)
    rows += _sample([("", word) for word in (*pairs, *texts)], 20)
    return [partial(_attack, *words) for words in dict.fromkeys(rows)]


def _sample(words: list[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    return words if len(words) <= most else Random(most).sample(words, most)


def _attack(start: str, word: str, length: int) -> str:
    return start + word * (length // len(word)) + "\x00"


def superlinear(run: Callable[[str], object], text: Callable[[int], str]) -> bool:
    """Whether the processor's time for a text grows faster than the text, or is far too much for it.

    What seems so is measured three times: another process may have slowed this one down.
    """
    return all(_seems_superlinear(run, text) for _ in range(3))


def _seems_superlinear(run: Callable[[str], object], text: Callable[[int], str]) -> bool:
    """Whether it seems so in one measurement.

    A text that costs next to nothing is not measured twice. Lengths begin small, for a cost that
    grows exponentially would never end.
    """
    for length in (20, 200, 1_600, 4_000):
        if _cost(run, text(length)) > _SLOW and _least(run, text(length)) > _SLOW:
            return True
    if _cost(run, text(_LENGTH)) < _NOTICEABLE:
        return False
    small = max(_least(run, text(_LENGTH)), _NOTICEABLE / 2)
    return small > _SLOW or all(
        _least(run, text(times * _LENGTH)) > 2 * times * small for times in (_TIMES - 1, _TIMES)
    )


def _least(run: Callable[[str], object], text: str) -> float:
    return min(_cost(run, text) for _ in range(3))


def _cost(run: Callable[[str], object], text: str) -> float:
    began = thread_time()
    run(text)
    return thread_time() - began
