"""What has to come of two events in a state: the table of the page, applied one event after the other.

Nothing here calls the package. Where a value has a `|`, either side is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
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
    "mode",
    "revoke",
    "takeover",
    "kill",
    "forget",
]
State = Literal[
    "idle",
    "running",
    "running, queued",
    "calling",
    "stepping",
    "asking",
    "brewing",
    "brewed",
    "paused",
    "paused, queued before",
    "paused, sent after",
    "waits for a client tool",
    "cut off",
    "handed over",
    "forgotten",
]
Door = Literal["process", "processes", "http"]
EVENTS: tuple[Event, ...] = get_args(Event)
STATES: tuple[State, ...] = get_args(State)
PAGE = Path(__file__).resolve().parents[3] / "docs/sdk/agents/react/flow-README.md"
HEADING = "## States and events"
RUNS = ("running", "calling", "asking")
ANY = "any"
"""What no rule says, and no table."""


Facts = dict[str, str]


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
    takeovers: set[str] = field(default_factory=set[str])
    recovered: set[int] = field(default_factory=set[int])
    followers: list[str] = field(default_factory=list[str])
    owner: str = "a"
    calls: int = 0
    forks: int = 0
    rules: int = 0
    plans: bool = False
    """Whether the mode of the conversation is `plan`, which denies the call that waits for approval."""
    is_gone: bool = False
    is_killed: bool = False
    runs_calls: bool = True
    """Whether the tool of an answered call runs here; else the client has run it."""
    keeps_paused: bool = False
    """Whether the message that was sent after the question has not ended the paused turn yet, as its turn has not begun."""

    @property
    def runner(self) -> str:
        """The process that runs the active turn, empty if none does."""
        return self.owner if self.turns.get(self.active) in RUNS else ""

    @property
    def active(self) -> int:
        """The turn that has begun and not ended, 0 if there is none."""
        names = ("running", "calling", "asking", "paused", "cut off")
        return next((number for number, state in self.turns.items() if state in names), 0)

    @property
    def column(self) -> str:
        return "forgotten" if self.is_gone else self.turns.get(self.active, "idle")

    def apply(self, step: Step) -> None:
        cell = self.table[step.event, self.column]
        if step.event == "stop" and cell == "nothing" and "queued" in self.turns.values():
            cell = "stops"
        _CELLS[cell](self, step)

    def settle(self) -> None:
        """Let everything go on that nothing holds back; after a kill another process resumes what was cut off."""
        while self.active and self._goes_on():
            self._take_joined()
            prompts = [label for label, number in self.prompts.items() if number == self.active]
            is_recalled = any(self.inputs[label] == "recalled" for label in prompts)
            self._finish(self.active, "stopped" if is_recalled else "complete")
            self.advance()
        for label in self.waiting:
            self.outcomes.setdefault(label, "waits")

    def _goes_on(self) -> bool:
        is_resumed = (
            self.is_killed and self.active not in self.recovered
        )  # unasked that is done once
        return self.turns[self.active] in ("running", "calling") or (
            self.turns[self.active] == "cut off" and is_resumed
        )

    def facts(self) -> dict[str, str]:
        facts = {f"sender {label}": outcome for label, outcome in self.outcomes.items()}
        if not self.is_gone:
            # A turn whose prompt was recalled may be ended, or never begin.
            turns = {
                number: state.replace("recalled", "recalled|stopped")
                for number, state in self.turns.items()
            }
            facts |= {f"turn {number}": state for number, state in turns.items()}
            facts |= {f"input {label}": state for label, state in self.inputs.items()}
            facts["calls"] = f"{self.calls}"
            facts["rules"] = f"{self.rules}"
        return facts

    def queue(self, step: Step) -> None:
        number = len(self.turns) + 1
        self.turns[number], self.prompts[step.label] = "queued", number
        self.inputs[step.label], self.waiting[step.label] = "pending", number
        self.homes[step.label] = step.sender

    def advance(self) -> None:
        """Begin the next turn if none is active."""
        queued = next((number for number, state in self.turns.items() if state == "queued"), 0)
        if not self.is_gone and not self.active and queued:
            self.keeps_paused = False
            self.turns[queued] = "running"
            [label] = [label for label, number in self.prompts.items() if number == queued]
            self.inputs[label], self.owner = "taken", self.homes[label]
            self._take_joined()

    def interrupt(self, step: Step) -> None:
        self._finish(self.active, "interrupted")
        self.queue(step)

    def say_cell(self, step: Step) -> None:
        cell = self.table[step.event, self.column]
        if cell == "waits for the turn":
            self.followers.append(step.sender)
        words = {
            "refused or nothing": "refused|nothing|too late|stopped|forgotten",
            "waits for the turn": ANY,
            "running": "running|nothing",  # the turn may end before the other process looks
        }
        self.outcomes[step.label] = words.get(cell, cell)
        self.forks += cell == "forked"

    def join(self, step: Step) -> None:
        """Store a message for the active turn, or the next one."""
        self.inputs[step.label], self.outcomes[step.label] = "pending", "stored"

    def redirect(self, step: Step) -> None:
        """Cut off the request of the active turn for a message."""
        self.join(step)
        self._take_joined()

    def _take_joined(self) -> None:
        for label, state in self.inputs.items():
            number = self.prompts.get(label, self.active)
            if state == "pending" and self.turns[number] != "queued":
                self.inputs[label] = "taken"

    def _finish(self, turn: int, reason: str) -> None:
        self.turns[turn] = reason
        for label in [label for label, number in self.waiting.items() if number == turn]:
            del self.waiting[label]
            resumes = label in self.takeovers
            self.outcomes[label] = "resumed" if resumes else f"turn_{turn} {reason}"

    def answer(self, step: Step) -> None:
        turn = self.active
        if self.turns[turn] == "asking":
            self.calls = 1
            self.outcomes[step.label] = "answered"
        else:
            self.calls = int(self.runs_calls and not self.plans)
            self.rules += self.runs_calls
            self.waiting[step.label], self.owner = turn, step.sender
            self.homes[step.label] = step.sender
        self.turns[turn] = "running"
        self._take_joined()

    def plan(self, step: Step) -> None:
        self.plans = True
        self.outcomes[step.label] = "changed"

    def revoke(self, step: Step) -> None:
        self.outcomes[step.label] = "revoked" if self.rules else "refused"
        self.rules = 0

    def go_on(self, step: Step) -> None:
        """Resume the turn that was cut off."""
        turn = self.active
        if step.event == "takeover" and turn in self.recovered:
            self.outcomes[step.label] = "skipped"
            return
        self.owner = step.sender
        self.turns[turn] = "running"
        self._take_joined()
        self.waiting[step.label], self.homes[step.label] = turn, step.sender
        if step.event == "takeover":
            self.takeovers.add(step.label)
            self.recovered.add(turn)

    def recall(self, step: Step) -> None:
        """Take a message back, unless a round has taken it."""
        if self.inputs[step.target] != "pending":
            self.outcomes[step.label] = "too late"
            return
        self.outcomes[step.label], self.inputs[step.target] = "recalled", "recalled"
        # The turn whose step runs ends when no round takes its message.
        if step.target in self.prompts and self.turns[self.prompts[step.target]] != "calling":
            self._finish(self.prompts[step.target], "recalled")
            if self.keeps_paused:
                self.turns[1] = "paused"
            # Its sender may hear of it at once, or when its turn would have come.
            self.outcomes[step.target] = (
                f"turn_{self.prompts[step.target]} stopped|waits|refused|lost"
            )

    def stop(self, step: Step) -> None:
        """End the active turn, and take back what waits behind it in the same process."""
        self.outcomes[step.label] = "stopped"
        waits_here = step.sender in [self.homes[label] for label in self.waiting]
        is_here = self.runner == step.sender or waits_here
        if self.active:
            self._finish(self.active, "stopped")
        for label, number in self.prompts.items():
            is_own = self.homes[label] == step.sender or not is_here
            if self.turns[number] == "queued" and is_own:
                waits, self.inputs[label] = label in self.waiting, "recalled"
                self._finish(number, "recalled")
                if waits:
                    self.outcomes[label] = f"turn_{number} stopped"

    def kill(self, step: Step) -> None:
        """Kill the process of the step: those who sent by it are gone, and the turn that it runs is cut off."""
        self.outcomes[step.label], self.is_killed = "killed", True
        here = [label for label, home in self.homes.items() if home == step.sender]
        for label in here:  # it may have heard what came of it before
            lost = label in self.waiting
            self.outcomes[label] = "lost" if lost else f"{self.outcomes[label]}|lost"
            self.waiting.pop(label, None)
        if self.runner == step.sender:
            self.turns[self.active] = "cut off"
            followers = [sender for sender in self.followers if sender != step.sender]
            if self.waiting:  # who lives and has sent a message ends the turn
                self._finish(self.active, "interrupted")
            elif followers:  # who waits for the turn to resume it does so
                self.turns[self.active], self.owner = "running", followers[0]

    def forget(self, step: Step) -> None:
        """Remove the conversation, unless a fork needs it."""
        if self.forks:
            self.outcomes[step.label] = "refused"
            return
        self.outcomes[step.label], self.is_gone = "forgotten", True
        for label, outcome in self.outcomes.items():
            # A stop waits until the turn has ended; a server's sender reads the result after the end of the turn.
            if outcome == "stopped" or (self.door == "http" and outcome.endswith(" stopped")):
                self.outcomes[label] = f"{outcome}|refused"
        for label in self.waiting:
            self.outcomes[label] = "failed" if label in self.takeovers else "refused"
        self.waiting.clear()


_CELLS: Mapping[str, Callable[[Talk, Step], None]] = {
    **dict.fromkeys(("refused", "nothing", "running", "waiting", "forked"), Talk.say_cell),
    **dict.fromkeys(("refused or nothing", "waits for the turn"), Talk.say_cell),
    **dict.fromkeys(("begins", "waits"), Talk.queue),
    **dict.fromkeys(("pending", "joins"), Talk.join),
    "interrupts": Talk.interrupt,
    "redirects": Talk.redirect,
    "answers": Talk.answer,
    "continues": Talk.go_on,
    "changes": Talk.plan,
    "revokes": Talk.revoke,
    "recalls": Talk.recall,
    "stops": Talk.stop,
    "cuts off": Talk.kill,
    "forgets": Talk.forget,
}
"""What the words of the table mean."""


def start(state: State, door: Door, *, begins: bool = True, keeps_paused: bool = False) -> Talk:
    """Return a conversation in the state; a message that was sent after a question may not have begun its turn.

    If it has not, the paused turn may not have ended either.
    """
    talk = Talk(read_table(), door)
    talk.queue(Step("say", "first"))
    talk.advance()
    match state:
        case "idle" | "forgotten" | "brewing" | "brewed":
            talk.settle()
            talk.is_gone, talk.calls = state == "forgotten", int(state.startswith("brew"))
        case "running" | "calling" | "stepping" | "asking" | "cut off":
            talk.turns[1] = "calling" if state == "stepping" else state
            talk.calls = int(state in ("calling", "stepping", "cut off"))
            # No round has taken the message of a turn whose step runs.
            talk.inputs["first"] = "pending" if state == "stepping" else "taken"
        case "running, queued":
            talk.queue(Step("say", "queued"))
        case "paused" | "paused, queued before" | "paused, sent after" | "waits for a client tool":
            talk.turns[1], talk.outcomes["first"] = "paused", "turn_1 paused"
            talk.waiting.clear()
            talk.runs_calls = state != "waits for a client tool"
            if state == "paused, queued before":
                talk.queue(Step("say", "queued"))
            elif state == "paused, sent after":
                talk.apply(Step("say", "after"))
                talk.keeps_paused = keeps_paused
                if begins:
                    talk.advance()
        case "handed over":
            talk.turns[1], talk.calls, talk.owner = "running", 1, "b"
            talk.recovered.add(1)
    if state in ("cut off", "handed over"):
        talk.waiting.clear()
        talk.outcomes["first"] = "lost"
    return talk


def expected(
    state: State, steps: Sequence[Step], door: Door, unbegun: int, *, keeps_paused: bool = False
) -> Facts:
    """Return the facts after the steps, in this order; no turn begins before so many of them have come."""
    talk = start(state, door, begins=not unbegun, keeps_paused=keeps_paused)
    for number, step in enumerate(steps):
        talk.apply(step)
        is_stopped = any(before.event == "stop" for before in steps[:number])
        if step.event == "takeover" and is_stopped and talk.outcomes[step.label] == "nothing":
            talk.outcomes[step.label] = "nothing|running"  # its runner may still be ending it
        if number + 1 >= unbegun:
            talk.advance()
    talk.settle()
    return talk.facts()


def allowed(state: State, steps: Sequence[Step], door: Door, *, at_once: bool) -> list[Facts]:
    """Return all that may come of the steps: of those that come at once, of either order."""
    orders = [steps, steps[::-1]] if at_once else [steps]
    latest = len(steps) if at_once else int(state == "paused, sent after")
    found = [
        expected(state, order, door, unbegun, keeps_paused=keeps_paused)
        for order in orders
        for unbegun in range(latest + 1)
        for keeps_paused in {False, state == "paused, sent after" and unbegun > 0}
    ]
    return [_loosened(state, facts, steps) for facts in found] if latest else found


def _loosened(state: State, facts: Facts, steps: Sequence[Step]) -> Facts:
    """Return the facts where a turn may be stopped at any point, and be met at any point."""
    events = set[Event](step.event for step in steps)
    labels = {step.label for step in steps}
    facts |= {f"sender {step.label}": _loosened_outcome(facts, step, events) for step in steps}
    if "recall" in events:
        # A round may have taken a message for the turn whose prompt was recalled.
        facts |= {name: "pending|taken" for name, value in facts.items() if value == "pending"}
    if "forget" in events:
        for name in [name for name in facts if name.startswith("sender ")]:
            if name.removeprefix("sender ") not in labels:  # who waits may hear of it in between
                facts[name] += "|refused"
    if "stop" in events:
        may_be = "taken|pending|recalled"
        facts |= {name: may_be for name in facts if name.startswith("input ")}
        if state.startswith(("paused", "waits")) and facts.get("turn 1") in (
            "interrupted",
            "stopped",
        ):
            facts["turn 1"] = "interrupted|stopped"  # the message or the stop may end it
    if events & {"stop", "steer", "mode"} and "answer" in events and "calls" in facts:
        facts["calls"] = "0|1"
    if state == "paused, sent after" and events == {"answer", "stop"}:
        # The stop takes the message back before it ends the turn, and an answer in between grants its rule.
        facts["rules"] = "0|1"
    return facts


def _loosened_outcome(facts: Facts, step: Step, events: Set[Event]) -> str:
    outcome = facts[f"sender {step.label}"]
    match step.event:
        case "stop" if outcome == "nothing":  # what comes at once is there to be stopped
            return "nothing|stopped"
        case "takeover":
            return "nothing|running|waiting|resumed|failed|skipped"
        case "recall" if "forget" in events:
            return f"{outcome}|too late"
        case "resume" if "stop" in events and outcome != ANY:  # it may be stopped in the queue
            return f"{outcome}|refused|turn_1 stopped|turn_2 stopped"
        case "answer" if "stop" in events and outcome == "refused":
            # The stop may come before the message that was sent has ended the turn.
            return "refused|turn_1 stopped"
        case "answer" if events == {"answer"} and outcome == "refused":
            return "refused|answered"
        case _:
            return outcome


def runner_of(state: State, steps: Sequence[Step], door: Door) -> str:
    """Return the process that runs the conversation after the steps; if none does, the one that began it."""
    talk = start(state, door)
    for step in steps:
        talk.apply(step)
        talk.advance()
    return talk.runner or "a"


def fits(observed: Mapping[str, str], facts: Mapping[str, str]) -> bool:
    return observed.keys() == facts.keys() and all(
        value == ANY or observed[name] in value.split("|") for name, value in facts.items()
    )
