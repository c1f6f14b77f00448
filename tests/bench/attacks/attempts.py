"""The attacks that tests make: each attempt is a test, and none may get through.

The tests are run again, by their names; a row counts the attempts, one for each set of parameters.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from tests.bench.attacks.outcome import Outcome
from tests.bench.rounds import ROOT


@dataclass(frozen=True, slots=True)
class Tried:
    """An attack, what it did once, and the tests that make it: a file below `tests`, and names of functions."""

    attack: str
    before: str
    tests: tuple[tuple[str, tuple[str, ...]], ...]


def _tried(attack: str, before: str, file: str, *names: str) -> Tried:
    return Tried(attack, before, ((file, names),))


TRIED = (
    _tried(
        "strangers' text writes a line of the frame",
        "[USER INTERRUPT] in ANNOUNCE",
        "scenarios/test_nothing_forges_a_line.py",
        "test_a_source_cannot_write_a_line_of_its_own",
        "test_an_attachment_cannot_write_a_line_of_its_own",
        "test_a_type_that_was_imported_is_one_line",
    ),
    _tried(
        "a result passes for a live tag or a decision",
        "in tagged and json",
        "scenarios/test_what_others_wrote_is_shown_as_such.py",
        "test_a_result_holds_no_line_of_the_frame_and_nothing_of_the_protocol",
    ),
    _tried(
        "an imported commit is HEAD, --help, a branch",
        "read",
        "scenarios/test_an_import_is_inert.py",
        "test_a_commit_that_is_no_digest_is_refused",
        "test_an_import_takes_the_place_of_no_child_run",
    ),
    _tried(
        "a fork without a name after one was forgotten",
        "fails for ever",
        "scenarios/test_conversations_branch_and_end.py",
        "test_a_fork_without_a_name_passes_over_those_that_were_forgotten",
        "test_a_fork_needs_a_name_that_can_be_stored",
    ),
    _tried(
        "something is forgotten during a backup, which is cut off",
        "fails, leaves .unfinished",
        "crashes/test_a_store_is_backed_up.py",
        "test_what_is_forgotten_during_a_backup_is_not_in_it",
        "test_a_backup_that_fails_leaves_nothing",
    ),
    _tried(
        "a loss of power after a steer, answer, approval, recall",
        "not synced",
        "crashes/test_a_store_has_one_name.py",
        "test_what_a_user_may_say_at_any_time_survives_the_loss_of_power",
    ),
    _tried(
        "a conversation lives long; a model is made for each run",
        "both grow for ever",
        "scenarios/test_memory_stays_flat.py",
        "test_a_long_lived_conversation_holds_no_more_blocks_than_its_context_shows",
        "test_a_model_that_was_made_for_a_run_is_closed_once_no_run_uses_it",
    ),
    _tried(
        "one store by two names",
        "a running turn stolen",
        "crashes/test_a_store_has_one_name.py",
        "test_a_store_has_one_set_of_locks_and_blobs_whatever_it_is_called",
        "test_a_store_with_two_hard_names_is_refused",
    ),
    _tried(
        "a reply of 8,000 calls, or without end, from a server",
        "288 MB read",
        "providers/test_forms_in_turns.py",
        "test_a_reply_of_very_many_calls_is_given_up_while_it_streams",
        "test_a_reply_of_more_bytes_than_are_read_is_given_up",
    ),
    _tried(
        "a store is busy at any append of a turn",
        "the turn ends for good",
        "scenarios/test_a_store_that_is_busy.py",
        "test_a_turn_that_met_a_busy_store_is_carried_on",
        "test_a_steer_of_another_process_is_seen_although_the_store_was_busy_once",
    ),
    _tried(
        "a prompt is stopped in the queue",
        "StoppedInQueue raised",
        "scenarios/test_turns_take_turns.py",
        "test_a_prompt_that_another_runner_took_is_a_result_when_it_is_stopped_here",
        "test_prompts_that_are_stopped_before_their_turns_take_a_step_are_results",
    ),
    _tried(
        "escape codes are read at a terminal",
        "printed",
        "doors/test_the_terminal.py",
        "test_what_is_read_cannot_steer_the_terminal",
    ),
    _tried(
        "a token in knowledge.repo",
        "told in errors",
        "knowledge/test_git.py",
        "test_a_token_in_a_url_is_in_no_error",
    ),
    Tried(
        "names that cannot be, a Git object that is not there",
        "4 names, 1 object: untyped",
        (
            (
                "scenarios/test_odd_names_are_typed_errors.py",
                (
                    "test_a_store_that_cannot_be_is_said_to_be_none",
                    "test_a_name_that_cannot_be_stored_is_refused_or_not_found",
                ),
            ),
            (
                "knowledge/test_hostile_repositories.py",
                (
                    "test_a_lost_object_of_a_hostile_repository_is_not_fetched",
                    "test_what_is_no_full_id_never_reaches_git_as_one",
                ),
            ),
        ),
    ),
    _tried(
        "a server says the key, escaped or in other case",
        "kept in the cassette",
        "providers/test_cassettes.py",
        "test_a_key_is_not_in_the_file_even_if_the_server_says_it",
        "test_a_key_is_not_in_the_file_however_it_is_spelt",
    ),
    _tried(
        "other users read the store",
        "files are 0644",
        "crashes/test_a_store_has_one_name.py",
        "test_what_is_made_is_for_its_owner_alone",
    ),
    _tried(
        "the store is deleted or replaced under a runner",
        "3 turns acknowledged",
        "crashes/test_a_store_has_one_name.py",
        "test_nothing_is_acknowledged_into_a_deleted_store",
        "test_nothing_is_acknowledged_into_a_store_that_was_replaced",
    ),
    Tried(
        "a prompt, an answer, a result, a conversation without end",
        "no caps",
        (
            (
                "laws/test_no_text_stops_the_loop.py",
                (
                    "test_a_prompt_above_its_limit_is_refused_and_nothing_is_recorded",
                    "test_values_for_calls_that_wait_are_held_to_the_limit_of_a_prompt",
                    "test_a_result_above_its_limit_is_kept_up_to_it_and_says_so",
                    "test_json_of_many_values_is_not_read_and_a_long_text_of_commas_is",
                ),
            ),
            (
                "crashes/test_a_store_is_refused.py",
                ("test_the_limits_of_a_conversation_are_given_where_a_store_is_opened",),
            ),
        ),
    ),
    _tried(
        "a tool blocks the event loop past the lease",
        "another process took over",
        "crashes/test_a_silent_runner_is_taken_over.py",
        "test_an_owner_whose_event_loop_is_blocked_past_its_lease_keeps_it",
    ),
    _tried(
        "processes restart with cut turns",
        "nobody resumes them",
        "scenarios/test_cut_turns_are_resumed.py",
        "test_every_cut_turn_of_a_store_is_carried_on_and_those_that_ended_are_left_alone",
        "test_a_turn_that_cuts_off_its_second_process_too_is_left_to_a_person",
    ),
    _tried(
        "the wall clock leaps a day",
        "deadline_seconds fires",
        "scenarios/test_the_time_of_a_turn.py",
        "test_a_wall_clock_that_leaps_brings_no_deadline",
        "test_what_a_turn_has_taken_is_known_in_the_next_process",
    ),
)


def run_tests(rows: Sequence[Tried], jobs: int) -> dict[tuple[str, str], list[bool]]:
    """Run all their tests at once; for each file and function, whether each of its attempts was held off."""
    names = [
        f"tests/{file}::{name}"
        for row in rows
        for file, functions in row.tests
        for name in functions
    ]
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"-n{jobs}", f"--junit-xml={report}"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *dict.fromkeys(names)],
            cwd=ROOT,
            stdout=sys.stderr,
            check=False,
        )
        cases = list(ET.parse(report).iter("testcase")) if report.exists() else []
    attempts = dict[tuple[str, str], list[bool]]()
    for case in cases:
        file = case.attrib["classname"].removeprefix("tests.").replace(".", "/") + ".py"
        function = re.split(r"\[", case.attrib["name"], maxsplit=1)[0]
        attempts.setdefault((file, function), []).append(len(case) == 0)
    return attempts


def outcome(row: Tried, attempts: dict[tuple[str, str], list[bool]]) -> Outcome:
    """Count the attempts of a row, and those that got through; a test that is not there holds nothing off."""
    keys = [(file, name) for file, functions in row.tests for name in functions]
    made = [held for key in keys for held in attempts.get(key, [])]
    through, missing = (
        made.count(False),
        [name for key in keys if key not in attempts for name in [key[1]]],
    )
    now = f"{through} of {len(made)} attempts"
    if missing:
        now += f", and not made: {', '.join(missing)}"
    return Outcome(row.attack, row.before, now, through == 0 and not missing)


def try_again(jobs: int) -> list[Outcome]:
    """Have the tests make their attacks again; a row for each."""
    attempts = run_tests(TRIED, jobs)
    return [outcome(row, attempts) for row in TRIED]
