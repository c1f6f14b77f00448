"""Words that readers and writers of documentation use for one another."""

from __future__ import annotations

from loopline.adapters.offline.stems import stem

# One row, one meaning. General to software; nothing here is about one project.
_ROWS = """
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
attach attachment
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
folder directory
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
migrate upgrade
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
speed fast performance
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
    """The words themselves."""
    return tuple(_TABLE.get(word, {}).values())
