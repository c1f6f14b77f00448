"""An independent check of the fuzzed turns: it reads the tables of the store and the ledgers, and nothing of the package."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.fuzzed_turns.tables import Tables

Line = dict[str, Any]
"""A line of a ledger, or the stored body of a block."""
INPUTS = ("user.prompt", "user.followup", "user.steer")
MARK = re.compile(r"zq[0-9a-z]+qz")
STOP_SECONDS = 5.0
"""How long after a stop was stored a child run of the turn may still ask its model."""


@dataclass(frozen=True)
class Row:
    """A block as it is stored; `own` tells it from a block that a fork inherits."""

    seq: int
    turn: int
    round: int
    ts: float
    term: int
    type: str
    body: Line
    own: bool = True


@dataclass
class Talk:
    """A stored conversation, and what the ledgers say about it."""

    name: str
    rows: list[Row]
    told: list[Line] = field(default_factory=list[Line])
    effects: list[Line] = field(default_factory=list[Line])
    requests: list[Line] = field(default_factory=list[Line])

    def of(self, *types: str) -> list[Row]:
        return [row for row in self.rows if row.type in types]

    @cached_property
    def exits(self) -> dict[int, Row]:
        return {row.turn: row for row in reversed(self.of("react.exit"))}

    @cached_property
    def takers(self) -> dict[int, list[Row]]:
        """The rounds that take each input, by its seq."""
        takers = defaultdict[int, list[Row]](list)
        for row in self.of("react.round.start"):
            for seq in row.body.get("takes", []):
                takers[seq].append(row)
        return takers

    @cached_property
    def recalls(self) -> dict[int, int]:
        """The seq of the first recall of each input, by the input's seq."""
        return {row.body["said"]: row.seq for row in reversed(self.of("user.recalled"))}

    @cached_property
    def times(self) -> dict[int, float]:
        """The time at which each block was made, in seconds since 1970, by its seq."""
        return {row.seq: row.ts / 1000 for row in self.rows}

    def is_recalled(self, seq: int) -> bool:
        """Return whether an input was recalled before a round took it."""
        taken = min((row.seq for row in self.takers.get(seq, [])), default=self.rows[-1].seq + 1)
        return self.recalls.get(seq, taken) < taken

    def result_of(self, row: Row) -> Line:
        """Return the result of the call that a block names, empty if it has none."""
        for result in self.of("react.tool.result"):
            if (result.turn, result.body["call_id"]) == (row.turn, row.body["call_id"]):
                return result.body
        return {}


@dataclass
class World:
    """Everything that was stored and written down."""

    talks: dict[str, Talk]
    broken: list[str] = field(default_factory=list[str])


def read_world(folder: Path) -> World:
    talks = {talk.name: talk for talk in read_talks(folder)}
    broken: list[str] = []
    for kind in ("told", "effects", "requests"):
        for path in sorted(folder.glob(f"{kind}-*")):
            lines = path.read_bytes().split(b"\n")[:-1]  # a kill may cut the last one off
            for line in map(json.loads, lines):
                talk = talks.get(line["conversation"])
                if talk is not None:
                    getattr(talk, kind).append(line)
                elif line.get("action") in INPUTS:
                    broken.append(f"{line['conversation']}: a receipt, but no conversation: {line}")
                if line.get("action") in ("failure", "hang"):
                    broken.append(f"{line['conversation']}: {line}")
    for talk in talks.values():
        talk.requests.sort(key=lambda line: (line["round"], line["at"]))
    return World(talks, broken)


def read_talks(folder: Path) -> Iterator[Talk]:
    """Yield every conversation of the store, a fork with the blocks that it inherits."""
    store = Tables(folder)
    try:
        columns = "SELECT seq, turn, round, ts, term, type, body FROM blocks WHERE conversation = ?"
        for number, name in store.rows("SELECT id, name FROM conversations"):
            rows: list[Row] = []
            query = "SELECT owner, first, last FROM segments WHERE conversation = ? ORDER BY last"
            for owner, first, last in store.rows(query, [number]):
                part = f"{columns} AND seq BETWEEN ? AND ? ORDER BY seq"
                inherited = store.rows(part, [owner, first, last])
                rows += [read_row(found, is_own=False) for found in inherited]
            own = store.rows(f"{columns} ORDER BY seq", [number])
            rows += [read_row(found, is_own=True) for found in own]
            if rows:  # a child run that was cut off before it began has none
                yield Talk(name, rows)
    finally:
        store.close()


def read_row(found: tuple[Any, ...], *, is_own: bool) -> Row:
    seq, turn, number, ts, term, kind, body = found
    return Row(seq, turn, number, ts, term, kind, json.loads(body), is_own)


# What holds within the blocks of a conversation.


def check_order(talk: Talk) -> Iterator[str]:
    """Seqs are contiguous from 1, and the terms of runners never fall."""
    if [row.seq for row in talk.rows] != list(range(1, len(talk.rows) + 1)):
        yield "the seqs are not contiguous from 1"
    terms = [row.term for row in talk.rows if row.own and row.term]
    if terms != sorted(terms):
        yield "a term falls"


def check_exits(talk: Talk) -> Iterator[str]:
    """An ended turn has one exit, and no runner records anything in it behind the exit."""
    for row in talk.of("react.exit"):
        if row is not talk.exits[row.turn]:
            yield f"turn_{row.turn} has a second exit at {row.seq}"
    for row in talk.rows:
        end = talk.exits.get(row.turn)
        if end is not None and row.seq > end.seq and (row.term or not is_of_user(row)):
            yield f"{row.type} at {row.seq} is behind the exit of turn_{row.turn} at {end.seq}"


def is_of_user(row: Row) -> bool:
    """Return whether a user's message or feedback may stand behind the exit of its turn."""
    return row.type.startswith("user.") or row.type == "turn.feedback"


def check_ended(talk: Talk) -> Iterator[str]:
    """In the end each turn has ended, waits for an answer, or was recalled before it began; a fork may not have been run."""
    if not any(row.own and row.term for row in talk.rows):
        return
    for prompt in talk.of("user.prompt"):
        begun = any(row.turn == prompt.turn and row.type == "turn.header" for row in talk.rows)
        is_left = not prompt.own or (not begun and talk.is_recalled(prompt.seq))
        if prompt.turn not in talk.exits and not is_left and not waits(talk, prompt.turn):
            yield f"turn_{prompt.turn} has not ended"


def waits(talk: Talk, turn: int) -> bool:
    pending = [row for row in talk.of("react.tool.pending") if row.turn == turn]
    return any(not talk.result_of(row) for row in pending)


def check_calls(talk: Talk) -> Iterator[str]:
    """Each call of an ended turn has one result behind it, each result has its call, and no id is used twice."""
    calls = Counter((row.turn, row.body["call_id"]) for row in talk.of("react.tool.call"))
    results = Counter((row.turn, row.body["call_id"]) for row in talk.of("react.tool.result"))
    starts = Counter((row.turn, row.body["call_id"]) for row in talk.of("react.tool.start"))
    yield from (f"{key} is called {count} times" for key, count in calls.items() if count > 1)
    yield from (f"{key} is started {count} times" for key, count in starts.items() if count > 1)
    yield from (f"{key} has {count} results" for key, count in results.items() if count > 1)
    yield from (f"{key} has a result and no call" for key in results.keys() - calls.keys())
    yield from (f"{key} was started and not called" for key in starts.keys() - calls.keys())
    for key in calls.keys() - results.keys():
        if key[0] in talk.exits:
            yield f"{key} has no result, though its turn has ended"


def check_inputs(talk: Talk) -> Iterator[str]:
    """Each input is taken by one round at most, which comes after it; none is taken once it is recalled."""
    inputs = {row.seq for row in talk.of(*INPUTS)}
    for seq, takers in talk.takers.items():
        if seq not in inputs or any(row.seq < seq for row in takers):
            yield f"the round at {takers[0].seq} takes {seq}, which is no input before it"
        if len(takers) > 1:
            yield f"the input at {seq} is taken by {[row.seq for row in takers]}"
        if talk.is_recalled(seq):
            yield f"the input at {seq} was recalled, and is taken by the round at {takers[0].seq}"


# What holds between the blocks and the ledgers.


def check_receipts(talk: Talk) -> Iterator[str]:
    """Each acknowledged message is stored under its seq; a message is stored once, if it was not recalled."""
    rows = {row.seq: row for row in talk.rows}
    for line in talk.told:
        if line["action"] not in INPUTS:
            continue
        row = rows.get(line["seq"])
        if row is None or (row.type, row.body["text"], row.turn) != (
            line["action"],
            line["text"],
            line["turn"],
        ):
            yield f"the receipt {line} is not what is stored: {row}"
    texts = [row.body["text"] for row in talk.of(*INPUTS) if not talk.is_recalled(row.seq)]
    for text, count in Counter(texts).items():
        if count > 1:
            yield f"{text[:40]!r} is stored {count} times"


def check_results(talk: Talk) -> Iterator[str]:
    """What a user was told of a turn is what is stored."""
    prompts = {row.body["text"]: row for row in talk.of("user.prompt")}
    for line in talk.told:
        if line["action"] == "result":
            turn = int(line["turn"].removeprefix("turn_"))
            prompt = prompts.get(line["text"])
            if line["text"] and (prompt is None or prompt.turn != turn):
                yield f"{line['text'][:40]!r} got the result of {line['turn']}"
            end = talk.exits.get(turn)
            if line["exit_reason"] == "paused":
                if not any(row.turn == turn for row in talk.of("react.tool.pending")):
                    yield f"{line['turn']} is said to be paused, and no call of it waits"
            elif end is None:
                own = [row for row in prompts.values() if row.turn == turn]
                if line["exit_reason"] != "stopped" or not all(
                    talk.is_recalled(row.seq) for row in own
                ):
                    yield f"{line['turn']} is said to have ended as {line['exit_reason']}, and has no exit"
            else:
                yield from check_result(talk, line, turn, end)


def check_result(talk: Talk, line: Line, turn: int, end: Row) -> Iterator[str]:
    told, stored = line["exit_reason"], end.body["reason"]
    if (told, line["answer"], line["rounds"], stored) == ("stopped", "", 0, "stopped"):
        return  # the request was stopped while it waited, before the turn had ended
    if (told, line["answer"], line["rounds"], line["text"]) == ("stopped", "", 0, ""):
        starts = [row.ts / 1000 for row in talk.of("turn.header") if row.turn == turn]
        if min(starts) > line["at"]:
            return  # a request to resume was stopped while it waited, and the turn started later
    answers = {row.turn: row.body["text"] for row in talk.of("assistant.completion")}
    if (told, line["answer"]) != (stored, answers.get(turn, "")):
        yield f"the result {line} is not what is stored: {end.body}, {answers.get(turn)!r}"
    elif line["rounds"] != end.body.get("rounds", 0):
        yield f"{line['turn']} is said to have {line['rounds']} rounds: {end.body}"
    else:
        yield from check_late(talk, line, end)


def check_late(talk: Talk, line: Line, end: Row) -> Iterator[str]:
    """A result lists what the user added before its exit and no round has taken, and nothing that one took before."""
    numbers = Counter[tuple[int, str]]()
    for row in talk.of("user.followup", "user.steer"):
        numbers[row.turn, row.type] += 1
        ref = f"ar:turn_{row.turn}.{row.type}.{numbers[row.turn, row.type]}"
        settled = [taker.seq for taker in talk.takers.get(row.seq, [])]
        settled += [talk.recalls[row.seq]] if talk.is_recalled(row.seq) else []
        if row.seq < end.seq and not settled and ref not in line["late_input"]:
            yield f"{ref} is late for {line['turn']}, and its result does not say so"
        # A process that has lost the conversation tells its user before the next one stores the exit.
        before = [seq for seq in settled if seq < end.seq and talk.times[seq] <= line["at"]]
        if ref in line["late_input"] and before:
            yield f"{ref} is said to be late for {line['turn']}, and was settled before"


def check_effects(talk: Talk) -> Iterator[str]:
    """A call takes effect once, after its start was stored, and never if it was denied, not answered, or begun after a stop."""
    starts = {(row.turn, row.body["call_id"]): row for row in talk.of("react.tool.start")}
    stops = {row.turn: row.seq for row in reversed(talk.of("user.stop"))}
    begun = [line for line in talk.effects if line["event"] == "begin"]
    keys = [(int(line["turn"].removeprefix("turn_")), line["call"]) for line in begun]
    yield from (f"{key} took effect {n} times" for key, n in Counter(keys).items() if n > 1)
    for key, line in zip(keys, begun, strict=True):
        start = starts.get(key)
        if start is None or start.seq > line["head"]:
            yield f"{key} took effect before its start was stored: {line}"
        elif start.seq > stops.get(key[0], start.seq):
            yield f"{key} was started at {start.seq}, after the stop of its turn, and took effect"
    done = Counter(
        (int(line["turn"].removeprefix("turn_")), line["call"])
        for line in talk.effects
        if line["event"] == "end"
    )
    yield from check_granted(talk, set(keys), done)


CHANGING = ("fuzz.write", "fuzz.put", "fuzz.pay", "fuzz.alone")


def check_granted(
    talk: Talk, begun: set[tuple[int, str]], done: Counter[tuple[int, str]]
) -> Iterator[str]:
    """What took effect was allowed and approved; what was done has its effect."""
    approved = {
        (row.turn, row.body["call_id"]): row.seq
        for row in talk.of("user.answer")
        if row.body.get("value") is True
    }
    results = {(row.turn, row.body["call_id"]): row.body for row in talk.of("react.tool.result")}
    for row in talk.of("react.tool.call"):
        key, tool = (row.turn, row.body["call_id"]), row.body["tool"]
        status = results.get(key, {}).get("status", "ok" if key in results else "")
        if key in begun and status == "denied":
            yield f"{key} was denied, and took effect"
        if key in begun and "forbidden" in str(row.body.get("arguments")):
            yield f"{key} is forbidden, and took effect"
        if key in begun and tool == "fuzz.pay" and key not in approved:
            yield f"{key} was not approved, and took effect"
        if row.own and status == "ok" and tool in CHANGING and done[key] != 1:
            yield f"{key} is said to be done, and has {done[key]} effects"


def check_requests(talk: Talk) -> Iterator[str]:
    """Requests fit their window, pair calls with results, and belong to an open round of a turn that was not stopped."""
    stops = {row.turn: row.seq for row in reversed(talk.of("user.stop"))}
    for line in talk.requests:
        where = f"the request of the round at {line['round']}"
        if line["size"] > line["window"]:
            yield f"{where} has {line['size']} tokens for a window of {line['window']}"
        if not is_paired(line["messages"]):
            yield f"{where} has a call without its result, or a result without its call"
        end = talk.exits.get(line["turn"])
        if end is not None and end.seq <= line["head"]:
            yield f"{where} was sent after the exit of its turn at {end.seq}"
        if line["round"] > stops.get(line["turn"], line["round"]):
            yield f"{where} was sent, though its turn was stopped at {stops[line['turn']]}"


def is_paired(messages: Sequence[Sequence[Any]]) -> bool:
    """Return whether the results of each message's calls follow it, in the order of the calls."""
    expected: list[str] = []
    for role, _, ids in messages:
        if role == "tool":
            if not expected or expected.pop(0) != ids[0]:
                return False
        elif expected:
            return False
        else:
            expected = list(ids)
    return not expected


def check_shown(talk: Talk) -> Iterator[str]:
    """Law 8: an input is in the requests of the round that takes it, or of the next one; a recalled one is in none."""
    summaries = [(row.seq, row.body["covers"]) for row in talk.of("conv.range.summary")]
    asked = [line for line in talk.requests if line["purpose"] in ("decision", "answer")]
    shown = defaultdict[str, list[Line]](list)
    for line in talk.requests:
        for mark in {mark for _, marks, _ in line["messages"] for mark in marks} | {*line["tail"]}:
            shown[mark].append(line)
    kept = {row.body["text"] for row in talk.of(*INPUTS) if not talk.is_recalled(row.seq)}
    for row in talk.of(*INPUTS):
        found = MARK.match(row.body["text"])
        if found is None:
            continue
        # A message that comes too late to join a turn is recalled, and sent once more.
        if row.own and talk.is_recalled(row.seq) and row.body["text"] not in kept:
            for line in shown[found[0]]:
                yield f"the input at {row.seq} was recalled, and is in the request of {line['round']}"
        for taker in talk.takers.get(row.seq, []) if row.own else ():
            due = [line for line in asked if line["round"] == taker.seq]
            due = due or [line for line in asked if line["round"] > taker.seq][:1]
            for line in due:
                is_summed = any(
                    seq < line["round"] and covers >= row.seq for seq, covers in summaries
                )
                if line not in shown[found[0]] and not (is_summed and line["round"] != taker.seq):
                    yield (
                        f"the input at {row.seq} is taken by the round at {taker.seq}, and is not in the "
                        f"request of the round at {line['round']}"
                    )


def check_read(talk: Talk) -> Iterator[str]:
    for line in talk.told:
        if line["action"] == "read" and line["status"] not in ("ok", "cut"):
            yield f"{line['ref']} at {line['seq']} cannot be read: {line['status']}"


CHECKS: Sequence[Callable[[Talk], Iterable[str]]] = (
    check_order,
    check_exits,
    check_ended,
    check_calls,
    check_inputs,
    check_receipts,
    check_results,
    check_effects,
    check_requests,
    check_shown,
    check_read,
)


def check_children(talks: dict[str, Talk]) -> Iterator[str]:
    """A child run is linked from its parent, has one turn, and ends once, as its parent says."""
    for name, talk in talks.items():
        links = [row for row in talk.of("run.child") if row.own]
        for child in {row.body["conversation"] for row in links}:
            own = [row for row in links if row.body["conversation"] == child]
            for problem in check_links(talk, talks.get(child), own):
                yield f"{name}: {child} {problem}"
        if "~" in name:
            parent = talks.get(name.rpartition("~")[0])
            known = [row.body["conversation"] for row in parent.of("run.child")] if parent else []
            if name not in known:
                yield f"{name}: no parent is linked to it"
            if {row.turn for row in talk.rows} != {1}:
                yield f"{name}: a child run has several turns"
            yield from check_stopped_child(talk, parent)


def check_links(talk: Talk, child: Talk | None, links: Sequence[Row]) -> Iterator[str]:
    """What a conversation says of one child run is what that has stored; one that was cut off before it began has no blocks."""
    said = [row.body["reason"] for row in links if row.body.get("reason")]
    if links[0].body["conversation"].rpartition("~")[0] != talk.name or len(links) > 2:
        yield f"is linked by {[row.seq for row in links]}"
    stored = child.exits[1].body["reason"] if child is not None and 1 in child.exits else ""
    if said and said != [stored] and child is not None:
        yield f"is said to have ended as {said}, and ended as {stored!r}"
    if not said and links[0].turn in talk.exits:
        yield "has not ended, though its parent's turn has"


def check_stopped_child(talk: Talk, parent: Talk | None) -> Iterator[str]:
    """A child asks its model nothing once its parent's turn has been stopped for a while."""
    for row in parent.of("run.child") if parent else ():
        stops = (
            [stop.ts for stop in parent.of("user.stop") if stop.turn == row.turn] if parent else []
        )
        if row.body["conversation"] == talk.name and stops:
            for line in talk.requests:
                if line["at"] - stops[0] / 1000 > STOP_SECONDS:
                    yield f"{talk.name}: it asked its model after the stop of its parent"


def check(world: World) -> list[str]:
    wrong = list(world.broken)
    for name, talk in world.talks.items():
        wrong += [f"{name}: {problem}" for holds in CHECKS for problem in holds(talk)]
    return [*wrong, *check_children(world.talks)]


def count(world: World) -> Counter[str]:
    counts = Counter[str]()
    for name, talk in world.talks.items():
        counts["child runs" if "~" in name else "conversations"] += 1
        counts.update(row.type for row in talk.rows if row.own)
        for row in talk.rows:
            match row.type:
                case "turn.header" if row.own:
                    preset = row.body.get("preset", "bare")
                    counts[f"preset {preset} x {row.body['protocol']}"] += 1
                case "react.exit" if row.own:
                    counts[f"exit {row.body['reason']}"] += 1
                case _:
                    pass
        counts.update(f"request {line['purpose']}" for line in talk.requests)
        counts["effects"] += sum(line["event"] == "begin" for line in talk.effects)
        counts.update(f"told {line['action']}" for line in talk.told if line["action"] != "error")
        counts.update(
            f"error {line['type']} of {line['of']}"
            for line in talk.told
            if line["action"] == "error"
        )
    return counts
