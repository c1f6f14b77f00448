"""Mutants that survived once, each by the sentence that kills it now: an anchor in the source and what takes its place."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from tests.bench.mutants.mutations import Mutant


class AnchorGone(Exception):
    """The source has changed: the mutant is to be written anew, or it can no longer be made."""


@dataclass(frozen=True, slots=True)
class Named:
    """A fault in words; in the file `anchor`, which stands there once, becomes `text`."""

    fault: str
    path: str
    anchor: str
    text: str

    def mutant(self, package: Path) -> Mutant:
        """The mutant in the source as it is now; `AnchorGone` unless the anchor stands there once."""
        source = (package / self.path).read_text("utf-8")
        if source.count(self.anchor) != 1:
            times = source.count(self.anchor)
            raise AnchorGone(f"{self.fault}: {times} times in {self.path}: {self.anchor!r}")
        before = source[: source.index(self.anchor)]
        line = before.count("\n") + 1
        start = len(before.encode())
        return Mutant(
            path=self.path,
            function=_function_at(source, line),
            line=line,
            operator=self.fault,
            start=start,
            end=start + len(self.anchor.encode()),
            text=self.text,
        )


def _function_at(source: str, line: int) -> str:
    """The qualified name of the innermost function that holds the line; empty where there is none."""
    inside = [""]

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{name}.{child.name}".lstrip(".")
                if not child.lineno <= line <= (child.end_lineno or child.lineno):
                    continue
                if not isinstance(child, ast.ClassDef):
                    inside.append(inner)
            visit(child, inner)

    visit(ast.parse(source), "")
    return inside[-1]


NAMED = (
    Named(
        "a summary forgets the notes of the one before",
        "prompt/range_summary.py",
        "{line.words: line for line in covered.previous.notes} if covered.previous else {}",
        "dict[str, LedgerLine]()",
    ),
    Named(
        "a summary forgets the sources of the one before",
        "prompt/range_summary.py",
        "{line.ref: line for line in covered.previous.sources} if covered.previous else {}",
        "dict[str, LedgerLine]()",
    ),
    Named(
        "a mark of the step behind the last one counts",
        "timeline/plan.py",
        "if match and 1 <= number <= steps else None",
        "if match and 1 <= number <= steps + 1 else None",
    ),
    Named(
        "activating the current plan writes a snapshot",
        "timeline/plan.py",
        "    if target.current:\n        return []\n",
        "",
    ),
    Named(
        "the oldest sources are shown as unseen, not the newest",
        "prompt/announce.py",
        "for n in not_marked[-SOURCES_SHOWN:]",
        "for n in not_marked[:SOURCES_SHOWN]",
    ),
    Named("the tail reaches two blocks further", "prompt/budget.py", "REACH = 18", "REACH = 20"),
    Named(
        "a point of the epoch before counts",
        "prompt/budget.py",
        "0 if policy.opens_epoch else rendering.last_tail",
        "rendering.last_tail",
    ),
    Named(
        "a point before the tail comes a round too late",
        "prompt/budget.py",
        "len(cuts) < policy.min_rounds",
        "len(cuts) <= policy.min_rounds",
    ),
    Named(
        "an old text without its base64 names a span of it",
        "prompt/truncation.py",
        "return truncate_text(bare, limit, ref, spanned=bare == text)",
        "return truncate_text(bare, limit, ref)",
    ),
    Named(
        "a silent owner is taken over without a second look",
        "store/leases.py",
        "        if owner != await self._owner(lock):\n            return None\n",
        "",
    ),
    Named(
        "a process takes over from itself",
        "store/leases.py",
        "if lock.conversation in self._leases or not owner.is_silent",
        "if not owner.is_silent",
    ),
    Named(
        "a blank reply becomes the answer",
        "react/runtime.py",
        "case Malformed(raw=raw, is_text=True) if raw.strip():",
        "case Malformed(raw=raw, is_text=True) if raw or True:",
    ),
    Named(
        "a hook holds the answer of the last round",
        "react/runtime.py",
        "case Hold() as hold if not state.last:",
        "case Hold() as hold:",
    ),
    Named(
        "a reply that was cut off on the last round is continued",
        "react/runtime.py",
        "table.options.output_escalations and not table.state.last",
        "table.options.output_escalations",
    ),
    Named(
        "what stands at the first place that may change cannot be hidden",
        "tools/timeline_tools.py",
        "if position < _stable_messages(call.timeline.last_round):",
        "if position <= _stable_messages(call.timeline.last_round):",
    ),
    Named(
        "twice as much may be hidden",
        "tools/timeline_tools.py",
        "if tokens > self._editable_tokens:",
        "if tokens > 2 * self._editable_tokens:",
    ),
    Named(
        "a summary reaches to the beginning of a turn that lies much later",
        "prompt/budget.py",
        "2 * (rendering.tokens - rendering.cost(cut.messages)) >= remaining_tokens",
        "4 * (rendering.tokens - rendering.cost(cut.messages)) >= remaining_tokens",
    ),
    Named(
        "what a summary says is carried beside it again",
        "prompt/range_summary.py",
        "if term not in summary:",
        "if term:",
    ),
    Named(
        "an index serves whether or not links are checked",
        "knowledge/space.py",
        "sorted(map(repr, roots)), validate_refs, *named)",
        "sorted(map(repr, roots)))",
    ),
    Named(
        "any fence closes a fence",
        "search/sections.py",
        "closes = mark.startswith(fence) and not line[match.end() :].strip()",
        "closes = True",
    ),
    Named(
        "a meta call gives way although its children ended",
        "react/executor.py",
        "return running.parsed.reads or running.children.running or not is_started",
        "return running.parsed.reads or self._has_children(running.parsed.call) or not is_started",
    ),
    Named(
        "guards do not see the sections of a result",
        "react/guards.py",
        "text=await guards.after(guarded, section.text)",
        "text=section.text",
    ),
    Named(
        "a turn looks for steers too seldom",
        "react/interrupter.py",
        "POLL_SECONDS = 0.2",
        "POLL_SECONDS = 2.0",
    ),
    Named(
        "a turn that appends does not see the steers of other processes",
        "timeline/recorder.py",
        "return max([block.seq for block in waiting if isinstance(block.body, UserSteer)] + [seq])",
        "return seq if waiting else seq",
    ),
    Named(
        "a second interruption takes the place of the first",
        "react/interrupter.py",
        'step.cause is None and (step.steerable or why != "steer")',
        '(step.steerable or why != "steer")',
    ),
    Named(
        "a stop within an interruption is taken for the interruption",
        "react/interrupter.py",
        "and not step.task.uncancel():",
        "and step.task.uncancel() >= 0:",
    ),
    Named(
        "a step that is over can still be cut off",
        "react/interrupter.py",
        "            self._step = outer\n            # If cancellations remain",
        "            # Else",
    ),
    Named(
        "limits that nobody knows are recalled",
        "react/loop_options.py",
        "for name, value in stored.items() if name in _CHECKS}",
        "for name, value in stored.items()}",
    ),
    Named(
        "of several JSON answers the first is the answer",
        "prompt/protocols/json_action.py",
        '"\\n\\n".join(answers)',
        '"".join(answers[:1])',
    ),
    Named(
        "an agent call that is not closed is an answer",
        "prompt/protocols/tagged.py",
        'case "agent_call" if element.is_call:',
        'case "agent_call" if element.is_call and element.closed:',
    ),
    Named(
        "a call that was cut off pauses the turn",
        "events/projection.py",
        "if projection.is_paused and not is_cut_off:",
        "if projection.is_paused:",
    ),
    Named(
        "what was thought goes before what was noted",
        "events/projection.py",
        "thought = event.notes or event.thinking",
        "thought = event.thinking or event.notes",
    ),
    Named(
        "a turn that failed tells its rounds",
        "events/dialects/fim.py",
        '"iterations": 0 if failed else event.rounds',
        '"iterations": event.rounds',
    ),
    Named(
        "what a refusal used is not counted",
        "models/structured.py",
        "Attempt(level=level, problem=problem, usage=reply.usage), None",
        "Attempt(level=level, problem=problem), None",
    ),
)
