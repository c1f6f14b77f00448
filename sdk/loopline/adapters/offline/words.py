"""Words of a question and of a text: where they stand, what they share, and how much they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from loopline.adapters.offline.stems import stem


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP_WORDS = _listed(
    """a about above after again all along also always am an and any are aren't as at away be
    because been before being below between both but by can can't cannot could couldn't did
    didn't do does doesn't doing don't down during each either else even ever every for from
    further get gets getting go goes going gone got had hadn't has hasn't have haven't having he
    her here hers herself him himself his how how's i i'd i'll i'm i've if in instead into is
    isn't it it's its itself just let let's like made make makes making many may me might mine
    more most much must my myself neither never no nor not now of off on once one ones only onto
    or other others otherwise ought our ours out over own per please quite rather really same
    shall she should shouldn't since so some somehow someone something still such than that
    that's the their theirs them themselves then there there's therefore these they they're this
    those though through thus to together too under until unless up upon us very via was wasn't
    we well were weren't what what's when where where's whether which while who whom whose why
    will with within without won't would wouldn't yet you your yours yourself tell explain mean
    means anyone anybody anything everything everyone nothing"""
)
# Said in questions about anything at all.
GENERAL = _listed(
    """actually add able allow allowed another answer appear ask asked available back bad become
    begin behave behaviour behavior best better big bring call called case cause certain change
    come coming concern correct correctly day deal decide describe detail different directly do
    doing easy effect enable end ending ensure exact exactly exist expect explicit fact few fine
    finish first fix fixed follow following full general give given good handle happen happening
    hard help high important include instead interested involve keep kept kind know large last
    lead least leave left less line little long longer look lot low main manage manner matter
    maximum may minimum need needed new next normal normally number obtain occur official old
    order ordinary original part particular pass passed people person place plain point possible
    precisely prefer probably problem proper properly provide purpose put question quick quickly
    read real reason recommend recommended related relevant require required right role rule say
    second see seem sense separate several short similar simple simply single situation small
    soon sort special specific stand standard start state stay step stop sure switch switched
    take taken thing think third three time today toward treat true try turn turned
    twice two typical typically understand unlike use used useful user uses using usual usually
    various want way whole wish work working works write wrong year"""
)
# Found on every other page about software: they narrow little.
COMMON = _listed(
    """action api app application argument attribute base body bool boolean browser bug build byte
    character check class click client code command comment config configuration configure
    content context control copy create data database date default define definition delete
    directory display doc document documentation entry error event example exception extension
    feature field file find folder form format framework function global group html http id
    import information input install installation instance integer interface item key language
    level library limit link list load local log logging machine map match message method mode
    model module name null object open operation option output package page parameter parse
    parser path pattern platform plugin process program project property protocol python query
    raise record reference register remove replace request resource response result return root
    row run runtime save script search section security send server service session set setting
    setup show site size software source static status store string structure style support
    syntax system table tag target template test text thread token tool type unit update upgrade
    url validate validation value variable version view warning web website widget window word"""
)
_COMPOUND = re.compile(r"\w+(?:[.\-'\u2019:/]+\w+)*")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_A-Za-z]+")
_CAMEL = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_POSSESSIVE = re.compile(r"['\u2019]s$")


@dataclass(frozen=True, slots=True)
class Word:
    """A word as written, its place among the words, the stem of the whole and those of its parts."""

    written: str
    place: int
    stem: str
    parts: tuple[str, ...]


def words(text: str) -> Iterator[Word]:
    """Every word; `cache_page`, `many-to-many` and `CacheKey` are one word with parts."""
    for place, match in enumerate(_COMPOUND.finditer(text)):
        written = _POSSESSIVE.sub("", match[0])
        parts = tuple(stem(part.lower()) for part in _PART.findall(written))
        yield Word(written, place, stem(written.lower()), parts if len(parts) > 1 else ())


def stems(text: str) -> dict[str, list[int]]:
    """The stems in the text, whole words and parts, with the places where they stand."""
    found: dict[str, list[int]] = {}
    for word in words(text):
        for each in {word.stem, *word.parts}:
            found.setdefault(each, []).append(word.place)
    return found


def is_name(word: str, *, first: bool) -> bool:
    """Whether a word looks like a name: an identifier, a product, a version, an acronym.

    The capital of a sentence's first word says nothing.
    """
    if "_" in word or _CAMEL.search(word) or any(letter.isdigit() for letter in word):
        return len(word) > 1
    if "." in word or (word.isupper() and len(word) > 1):
        return True
    return word[:1].isupper() and not first


def shares_root(one: str, other: str) -> bool:
    """Whether two stems are so alike that their words are kin: `disclos`, `disclosur`."""
    least, most = sorted((len(one), len(other)))
    if least < 5 or most - least > 3:
        return False
    return one[:least] == other[:least] or (least >= 7 and one[: least - 1] == other[: least - 1])
