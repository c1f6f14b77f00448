"""Words that readers and writers of documentation use for one another."""

from __future__ import annotations

from loopline.adapters.offline.stems import stem

# One row, one meaning. General to software; nothing here is about one project.
_ROWS = """
add append insert
allow permit enable accept
async asynchronous asyncio
block lock prevent forbid
bug defect issue
cache memoize store
cancel abort revoke
change alter modify edit update mutate
check verify validate
choose select pick
combine merge join
command cli subcommand
compress gzip zip deflate
concurrent parallel simultaneous
copy duplicate clone
crash fail die abort
create make generate build construct
delay wait countdown eta sleep
delete remove drop erase discard purge
deprecated obsolete removed
dictionary dict mapping
directory folder
disable off deactivate suppress
documentation docs manual
download fetch retrieve pull
duplicate same identical repeated
email mail message
empty blank
encrypt cipher
environment env
error exception failure fault
execute run invoke
expire timeout ttl expiry
file upload
filter restrict narrow
forbid disallow prohibit reject
hide conceal suppress
identifier id key
ignore skip omit exclude
image picture photo
import load
include contain embed
increase raise
inherit extend subclass derive
initial first startup
kill terminate stop shutdown
language locale translation
launch start spawn begin
limit maximum cap threshold restrict
link reference url
list enumerate
log record
login authenticate signin
move transfer relocate
notify inform announce alert
number amount count
option setting flag parameter configuration
order sort priority
output result print
override overwrite replace
own custom
password credential
periodic schedule recurring interval
permission privilege access authorization
plugin extension addon
print emit write output
prohibit disallow
random arbitrary
rename name
repeat retry again
require need must
reset clear flush
return yield
save persist store
schedule plan cron beat
search find lookup query
secret credential password key
send deliver transmit dispatch publish
separate split divide
shared common global
show display render
size length
slow performance speed
stop halt abort
temporary temp tmp
translate internationalize localize i18n l10n
type kind
typo misspelling spelling
unique distinct
upgrade migrate update
visible shown displayed
warn warning
worker process child
"""


def _table() -> dict[str, dict[str, str]]:
    """For each stem the stems that may stand for it, each with a word to search by."""
    table: dict[str, dict[str, str]] = {}
    for row in _ROWS.split("\n"):
        kin = {stem(word): word for word in row.split()}
        for each in kin:
            table.setdefault(each, {}).update({k: word for k, word in kin.items() if k != each})
    return table


_TABLE = _table()


def kin_of(word: str) -> frozenset[str]:
    """The stems of words that may stand for the one with this stem."""
    return frozenset(_TABLE.get(word, {}))


def words_like(word: str) -> tuple[str, ...]:
    """The words themselves, the closest first."""
    return tuple(_TABLE.get(word, {}).values())
