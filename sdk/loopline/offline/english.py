"""English words: their stems, their synonyms, and how much they say about what a text is about.

The stems are those of Porter (1980), lightly abridged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

# Each suffix with its replacement, for words with a vowel-consonant run before the suffix.
_SECOND = (
    ("ational", "ate"), ("ization", "ize"), ("isation", "ize"), ("fulness", "ful"),
    ("ousness", "ous"), ("iveness", "ive"), ("tional", "tion"), ("biliti", "ble"),
    ("entli", "ent"), ("ousli", "ous"), ("ation", "ate"), ("alism", "al"), ("aliti", "al"),
    ("iviti", "ive"), ("alli", "al"), ("izer", "ize"), ("iser", "ize"), ("ator", "ate"),
    ("abli", "able"), ("ibli", "ible"), ("eli", "e"), ("logi", "log"),
)  # fmt: skip
_THIRD = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("alise", "al"), ("iciti", "ic"),
    ("ical", "ic"), ("ness", ""), ("ful", ""),
)  # fmt: skip
_FOURTH = (
    "ement", "ance", "ence", "able", "ible", "ment", "sion", "tion", "ant", "ent", "ism", "ate",
    "iti", "ous", "ive", "ize", "ise", "ure", "al", "er", "or", "ic", "ou",
)  # fmt: skip
_UNSTEMMED = frozenset({"evening", "morning", "string", "during", "thing", "building", "wedding"})
_RUN = re.compile(r"[aeiouy][^aeiouy]")
_VOWEL = re.compile(r"[aeiouy]")
_DOUBLED = re.compile(r"([^aeiouylsz])\1$")
_SHORT = re.compile(r"(?:^|.*[^aeiouy])[aeiouy][^aeiouywx]$")


@lru_cache(maxsize=65_536)
def stem(term: str) -> str:
    """Return the stem of a lower-case word; short words, numbers and other scripts stay as they are."""
    if len(term) < 4 or not term.isascii() or not term.isalpha() or term in _UNSTEMMED:
        return term
    term = _without_past(_without_plural(term))
    if term.endswith("y") and _VOWEL.search(term[:-1]):
        term = term[:-1] + "i"
    term = _replaced(_replaced(term, _SECOND), _THIRD)
    return _without_e(_without_ending(term))


def _measure(text: str) -> int:
    """Return Porter's measure: the number of vowel-consonant runs."""
    return len(_RUN.findall(text))


def _without_plural(term: str) -> str:
    if term.endswith("sses"):
        return term[:-2]
    if term.endswith("ies"):
        return term[:-3] + ("y" if len(term) > 4 else "ie")
    return term[:-1] if term.endswith("s") and not term.endswith(("ss", "us", "is")) else term


def _without_past(term: str) -> str:
    if term.endswith("eed"):
        return term[:-1] if _measure(term[:-3]) else term
    for suffix in ("ed", "ing"):
        head = term.removesuffix(suffix)
        if head != term and len(head) > 1 and _VOWEL.search(head):
            return _restored(head)
    return term


def _restored(head: str) -> str:
    """Return the verb before `ed` or `ing`: cach(e), plan from plann, fil(e)."""
    if head.endswith(("at", "bl", "iz")):
        return head + "e"
    if _DOUBLED.search(head):
        return head[:-1]
    return head + "e" if _measure(head) == 1 and _SHORT.match(head) else head


def _replaced(term: str, suffixes: tuple[tuple[str, str], ...]) -> str:
    for suffix, replacement in suffixes:
        if term.endswith(suffix):
            head = term.removesuffix(suffix)
            return head + replacement if _measure(head) else term
    return term


def _without_ending(term: str) -> str:
    for suffix in _FOURTH:
        if term.endswith(suffix):
            letters = 1 if suffix in ("sion", "tion") else 0
            head = term[: len(term) - len(suffix) + letters]
            return head if _measure(head) > 1 else term
    return term


def _without_e(term: str) -> str:
    if term.endswith("e") and _measure(term[:-1]) >= 1 and len(term) > 4:
        term = term[:-1]
    return term[:-1] if term.endswith("ll") and _measure(term) > 1 else term


# One meaning a row, from software in general, never from one project.
_SYNONYM_ROWS = """
abort cancel revoke
accept allow permit enable
access permission privilege right authorization
account user member
add append insert attach
alert notify announce inform
alias nickname synonym
archive bundle zip tarball
argument parameter
async asynchronous asyncio nonblocking
authenticate login signin
automatic implicit
avoid prevent
backup dump snapshot
body content payload
boundary edge limit
broken corrupt damaged invalid
browser client visitor
buffer queue
bug defect issue
button control widget
bytes binary
cache memoize store
callback hook handler listener
certificate ssl tls https
change alter modify edit update mutate
character letter
chart graph plot
check verify validate
choose select pick
clean sanitize escape
clock time timestamp
collision conflict clash
colour color
combine merge join concatenate
command cli subcommand
comment remark annotation
compare diff equal
compress gzip zip deflate
concurrent parallel simultaneous
condition predicate
configure configuration setting option
connect connection
container docker
convert transform cast coerce
copy duplicate clone
core cpu processor
count number amount
crash fail die abort
create make generate build construct
database db
date day calendar
deadline timeout
debug diagnose troubleshoot
decode parse deserialize
default builtin preset
delay wait countdown sleep eta
delete remove drop erase discard purge
dependency requirement
deploy publish release
deprecated obsolete removed
destroy teardown
dictionary dict mapping
directory folder path
disable off deactivate suppress
disk filesystem storage
documentation docs manual guide
download fetch retrieve pull
email mail message
empty blank missing
encode serialize dump
encrypt cipher
environment env variable
error exception failure fault
escape quote
execute run invoke
exhaust deplete
expire timeout ttl expiry
expression formula
extend subclass inherit derive override
fast quick speed performance
file upload
filename name
filter restrict narrow
finish complete end
forbid disallow prohibit reject deny
foreign related relationship
format layout
forward redirect
freeze hang block stuck deadlock
function callable method
hash digest checksum fingerprint
header heading
hide conceal suppress
identifier id key
ignore skip omit exclude
image picture photo
immediately instantly synchronously
import load
include contain embed
increase raise grow
index lookup
inefficient slow
initial first startup
inspect examine introspect
intermittent flaky
job task
kill terminate stop shutdown
language locale translation
launch start spawn begin
library package dependency
limit maximum cap threshold restrict
link reference url hyperlink
list enumerate
lock mutex exclusive
log record
loop iterate repeat
memory ram
message notification
mistake error typo
mock stub fake
move transfer relocate
network socket
nested inner recursive
number digit numeric
optional nullable
order sort priority
output result
override overwrite replace
page document
password credential secret
pause wait suspend
periodic schedule recurring interval
person user
plugin extension addon
popup dialog
port address host
print emit write output
queue broker
random arbitrary
rate throttle
recover restore
reload refresh restart
rename name
repeat retry again
reply response answer
request query
require need must
reset clear flush
resize scale
return yield
reverse invert backward
row record
safe secure
save persist store
schedule plan cron
scope context
search find lookup query
send deliver transmit dispatch publish submit
separate split divide
server host backend
session cookie
share common global
shape structure
show display render visible shown
shrink compress minify
silence suppress mute quiet
size length width
slow performance
spelling typo
stop halt abort
submit upload post send
superuser root administrator admin
temporary temp tmp
test check
thread concurrency
token key
translate internationalize localize i18n l10n
trigger fire emit
trouble problem error deadlock
type kind
undo revert rollback
unique distinct
unsaved dirty modified
upgrade migrate update
variable name
visible shown displayed
visitor user client
vulnerable attack exploit insecure
wait block sleep
warn warning complaint
web http
wide width long
window pane
worker child process
write save
wrong incorrect invalid
"""


def _synonym_table() -> dict[str, dict[str, str]]:
    """Return, for each stem, the stems of its synonyms, each with a word to search for."""
    table: dict[str, dict[str, str]] = {}
    for row in _SYNONYM_ROWS.split("\n"):
        terms = {stem(term): term for term in row.split()}
        for key in terms:
            table.setdefault(key, {}).update({k: term for k, term in terms.items() if k != key})
    return table


_SYNONYMS = _synonym_table()


def synonym_stems(term_stem: str) -> frozenset[str]:
    """Return the stems of the synonyms of the word with this stem."""
    return frozenset(_SYNONYMS.get(term_stem, {}))


def synonyms(term_stem: str) -> tuple[str, ...]:
    """Return the synonyms of the word with this stem."""
    return tuple(_SYNONYMS.get(term_stem, {}).values())


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text between white space."""
    return frozenset(text.split())


STOP_WORDS = word_set(
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
# Words of questions about any subject.
GENERAL = word_set(
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
# Words of almost every page about software, which narrow a search little.
COMMON = word_set(
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
class Token:
    """A word as written, its position among the words, its stem, and the stems of its parts."""

    written: str
    position: int
    stem: str
    parts: tuple[str, ...]


def tokens(text: str) -> Iterator[Token]:
    """Yield every word; `cache_page`, `many-to-many` and `CacheKey` are single words with parts."""
    for position, match in enumerate(_COMPOUND.finditer(text)):
        written = _POSSESSIVE.sub("", match[0])
        parts = tuple(stem(part.lower()) for part in _PART.findall(written))
        yield Token(written, position, stem(written.lower()), parts if len(parts) > 1 else ())


def stems(text: str) -> dict[str, list[int]]:
    """Return the stems of the words in a text and of their parts, each with its positions."""
    positions: dict[str, list[int]] = {}
    for token in tokens(text):
        for key in {token.stem, *token.parts}:
            positions.setdefault(key, []).append(token.position)
    return positions


def is_name(term: str, *, first: bool) -> bool:
    """Return whether a word looks like a name: an identifier, a product, a version, an acronym.

    The capital of a sentence's `first` word does not make it a name.
    """
    if "_" in term or _CAMEL.search(term) or any(letter.isdigit() for letter in term):
        return len(term) > 1
    if "." in term or (term.isupper() and len(term) > 1):
        return True
    return term[:1].isupper() and not first


def shares_root(stem_a: str, stem_b: str) -> bool:
    """Return whether two stems come from one root, such as `disclos` and `disclosur`."""
    shorter, longer = sorted((len(stem_a), len(stem_b)))
    if shorter < 5 or longer - shorter > 3:
        return False
    return stem_a[:shorter] == stem_b[:shorter] or (
        shorter >= 7 and stem_a[: shorter - 1] == stem_b[: shorter - 1]
    )
