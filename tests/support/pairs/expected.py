"""What has to come of two events in a state: the table of the page, applied one event after the other.

Nothing here calls the package. Where a value has a `|`, either side is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

Event = Literal[
    "say",
    "steer",
    "followup",
    "answer",
    "resume",
    "recall",
    "stop",
    "fork",
    "takeover",
    "kill",
    "forget",
]
State = Literal[
    "idle",
    "running",
    "running, queued",
    "calling",
    "asking",
    "paused",
    "paused, queued before",
    "paused, sent after",
    "cut off",
    "handed over",
    "forgotten",
]
Door = Literal["process", "processes", "http"]
EVENTS: tuple[Event, ...] = get_args(Event)
STATES: tuple[State, ...] = get_args(State)
PAGE = Path(__file__).resolve().parents[3] / "docs/sdk/agents/react/flow-README.md"
HEADING = "## States and events"
NOT_TAKEN = "recalled|pending"


def read_table(page: Path = PAGE) -> dict[tuple[str, str], str]:
    """Return the cells of the table on the page, by event and column."""
    section = page.read_text("utf-8").partition(f"{HEADING}\n")[2]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    header, _, *body = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {
        (row[0].strip("`"), column): cell
        for row in body[: len(EVENTS)]
        for column, cell in zip(header[1:], row[1:], strict=True)
    }


@dataclass(frozen=True)
class Step:
    """An event, its label, and the process that sends it; a recall takes back the message of the label `target`."""

    event: Event
    label: str
    sender: str = "a"
    target: str = ""


@dataclass
class Talk:
    """A conversation as the table has it: the state of each turn, of each message, and what each sender gets."""

    table: Mapping[tuple[str, str], str]
    door: Door
    turns: dict[int, str] = field(default_factory=dict[int, str])
    prompts: dict[str, int] = field(default_factory=dict[str, int])
    inputs: dict[str, str] = field(default_factory=dict[str, str])
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    homes: dict[str, str] = field(default_factory=dict[str, str])
    owner: str = "a"
    calls: int = 0
    forks: int = 0
    is_gone: bool = False
    is_killed: bool = False

    @property
    def runner(self) -> str:
        """The process that runs the active turn, empty if none does."""
        return self.owner if self.turns.get(self.active) in ("running", "calling", "asking") else ""

    @property
    def active(self) -> int:
        """The turn that has begun and not ended, 0 if there is none."""
        names = ("running", "calling", "asking", "paused", "cut off")
        return next((number for number, state in self.turns.items() if state in names), 0)

    @property
    def column(self) -> str:
        """The column of the table."""
        return "forgotten" if self.is_gone else self.turns.get(self.active, "idle")

    def apply(self, step: Step) -> None:
        """Do what the cell of the event says."""
        cell = self.table[step.event, self.column]
        match cell:
            case "refused" | "nothing" | "running" | "waiting" | "forked":
                self.outcomes[step.label] = cell
                self.forks += cell == "forked"
            case "refused or nothing":
                self.outcomes[step.label] = "refused|nothing|too late|forgotten"
            case "begins" | "waits" | "interrupts":
                if cell == "interrupts":
                    self._finish(self.active, "interrupted")
                self._queue(step)
            case "pending" | "joins" | "redirects":
                self.inputs[step.label] = "pending"
                self.outcomes[step.label] = "stored"
                if cell == "redirects":
                    self._take_joined()
            case "answers":
                self._answer(step)
            case "continues":
                self._continue(step)
            case "refused after the turn":
                queued = [number for number, state in self.turns.items() if state == "queued"]
                turns = "".join(
                    f"|turn_{number} complete|turn_{number} stopped" for number in queued
                )
                self.outcomes[step.label] = f"refused{turns}"
            case "recalls":
                self._recall(step)
            case "stops":
                self._stop(step)
            case "cuts off":
                self._kill(step)
            case "forgets":
                self._forget(step)
            case _:
                raise AssertionError(f"{PAGE}: {step.event} in {self.column}: {cell!r}")
        self._advance()

    def settle(self) -> None:
        """Let everything go on that nothing holds back; after a kill another process resumes what was cut off."""
        goes_on = ("running", "calling", *(["cut off"] if self.is_killed else []))
        while self.active and self.turns[self.active] in goes_on:
            self._take_joined()
            self._finish(self.active, "complete")
            self._advance()
        for label in self.waiting:
            self.outcomes.setdefault(label, "waits")

    def facts(self) -> dict[str, str]:
        """Return all of it as facts to compare."""
        facts = {f"sender {label}": outcome for label, outcome in self.outcomes.items()}
        if not self.is_gone:
            for (
                number,
                state,
            ) in self.turns.items():  # one whose prompt was recalled may be ended, or not be begun
                facts[f"turn {number}"] = "recalled|stopped" if state == "recalled" else state
            facts |= {f"input {label}": state for label, state in self.inputs.items()}
            facts["calls"] = f"{self.calls}"
        return facts

    def _queue(self, step: Step) -> None:
        number = len(self.turns) + 1
        self.turns[number], self.prompts[step.label] = "queued", number
        self.inputs[step.label], self.waiting[step.label] = "pending", number
        self.homes[step.label] = step.sender

    def _advance(self) -> None:
        """Begin the next turn if none is active."""
        queued = next((number for number, state in self.turns.items() if state == "queued"), 0)
        if not self.is_gone and not self.active and queued:
            self.turns[queued] = "running"
            [label] = [label for label, number in self.prompts.items() if number == queued]
            self.inputs[label], self.owner = "taken", self.homes[label]
            self._take_joined()

    def _take_joined(self) -> None:
        for label, state in self.inputs.items():
            if state == "pending" and label not in self.prompts:
                self.inputs[label] = "taken"

    def _finish(self, turn: int, reason: str) -> None:
        self.turns[turn] = reason
        for label in [label for label, number in self.waiting.items() if number == turn]:
            del self.waiting[label]
            self.outcomes[label] = f"turn_{turn} {reason}"

    def _answer(self, step: Step) -> None:
        turn, self.calls = self.active, 1
        if self.turns[turn] == "asking":
            self.outcomes[step.label] = "answered"
        else:
            self.waiting[step.label], self.owner = turn, step.sender
            self.homes[step.label] = step.sender
        self.turns[turn] = "running"
        self._take_joined()

    def _continue(self, step: Step) -> None:
        turn, self.owner = self.active, "b" if step.event == "takeover" else step.sender
        self.turns[turn] = "running"
        self._take_joined()
        if step.event == "takeover":
            self.outcomes[step.label] = "resumed"
        else:
            self.waiting[step.label], self.homes[step.label] = turn, step.sender

    def _recall(self, step: Step) -> None:
        if self.inputs[step.target] != "pending":
            self.outcomes[step.label] = "too late"
            return
        self.outcomes[step.label], self.inputs[step.target] = "recalled", "recalled"
        if step.target in self.prompts:
            self._finish(self.prompts[step.target], "recalled")
            self.outcomes[step.target] = f"turn_{self.prompts[step.target]} stopped"

    def _stop(self, step: Step) -> None:
        self.outcomes[step.label] = "stopped"
        self._finish(self.active, "stopped")
        for label, number in self.prompts.items():
            if self.turns[number] == "queued" and self.homes[label] == step.sender:
                self._finish(number, "recalled")
                self.outcomes[label], self.inputs[label] = f"turn_{number} stopped", "recalled"

    def _kill(self, step: Step) -> None:
        """Kill the process of the step: those who sent by it are gone, and the turn that it runs is cut off."""
        self.outcomes[step.label], self.is_killed = "killed", True
        for label in [label for label in self.waiting if self.homes[label] == step.sender]:
            del self.waiting[label]
            self.outcomes[label] = "lost"
        if self.runner == step.sender:
            self.turns[self.active] = "cut off"
            if self.waiting:  # who lives and has sent a message ends the turn
                self._finish(self.active, "interrupted")

    def _forget(self, step: Step) -> None:
        if self.forks or (self.door == "http" and self.runner):
            self.outcomes[step.label] = "refused"
            return
        self.outcomes[step.label], self.is_gone = "forgotten", True
        for label in self.waiting:
            self.outcomes[label] = "refused|waits"
        self.waiting.clear()


def start(state: State, door: Door) -> Talk:
    """Return a conversation in the state."""
    talk = Talk(read_table(), door)
    talk._queue(Step("say", "first"))
    talk._advance()
    match state:
        case "idle" | "forgotten":
            talk.settle()
            talk.is_gone = state == "forgotten"
        case "running" | "calling" | "asking" | "cut off":
            talk.turns[1], talk.calls = state, int(state in ("calling", "cut off"))
        case "running, queued":
            talk._queue(Step("say", "queued"))
        case "paused" | "paused, queued before" | "paused, sent after":
            talk.turns[1], talk.outcomes["first"] = "paused", "turn_1 paused"
            talk.waiting.clear()
            if state == "paused, queued before":
                talk._queue(Step("say", "queued"))
            elif state == "paused, sent after":
                talk.apply(Step("say", "after"))
        case "handed over":
            talk.turns[1], talk.calls, talk.owner = "running", 1, "b"
    if state in ("cut off", "handed over"):
        talk.waiting.clear()
        talk.outcomes["first"] = "lost"
    return talk


def expected(state: State, steps: Sequence[Step], door: Door) -> dict[str, str]:
    """Return the facts after the steps, in this order."""
    talk = deepcopy(start(state, door))
    for step in steps:
        talk.apply(step)
    talk.settle()
    return talk.facts()


def runner_of(state: State, steps: Sequence[Step], door: Door) -> str:
    """Return the process that runs the conversation after the steps; if none does, the one that began it."""
    talk = start(state, door)
    for step in steps:
        talk.apply(step)
    return talk.runner or "a"


def fits(observed: Mapping[str, str], facts: Mapping[str, str]) -> bool:
    """Return whether what was observed is what the facts allow."""
    return observed.keys() == facts.keys() and all(
        observed[name] in value.split("|") for name, value in facts.items()
    )
