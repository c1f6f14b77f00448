"""Commands on stored conversations: fork, feedback, forget, and what each says when it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess

from loopline import Harness
from tests.doors.bundles import QUESTION
from tests.doors.command import LOOPLINE, Loopline
from tests.doors.terminal import Terminal


def test_forget_without_a_terminal_needs_yes(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1")
    refused = tea("forget", "c1")
    assert (refused.code, "give --yes" in refused.err) == (2, True)
    assert tea("read", "ar:turn_1.user.prompt", "-c", "c1").code == 0
    assert tea("forget", "c1", "--yes").code == 0
    assert "was forgotten on" in tea("read", "ar:turn_1.user.prompt", "-c", "c1").err


def test_forget_asks_at_a_terminal_and_keeps_what_is_not_confirmed(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1")
    for answer, code in (("n", 1), ("y", 0)):
        with Terminal(tea, "forget", "c1") as terminal:
            terminal.wait_for("Remove conversation c1, 1 turn, for good? [y/N]")
            terminal.type(f"{answer}\n")
            assert terminal.end() == code


def test_forget_of_a_name_that_never_was_is_an_error(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1")
    unknown = tea("forget", "c2", "--yes")
    assert (unknown.code, "no conversation 'c2'" in unknown.err) == (1, True)
    assert tea("forget", "c1", "--yes").code == 0
    again = tea("forget", "c1", "--yes")
    assert (again.code, "was forgotten before" in again.err) == (0, True)


def test_forget_says_how_many_forks_it_removes(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1")
    assert tea("fork", "c1", "--seq", "2", "--name", "c2").code == 0
    assert tea("fork", "c2", "--seq", "1", "--name", "c3").code == 0
    refused = tea("forget", "c1", "--yes")
    assert (refused.code, "--cascade" in refused.err) == (1, True)
    shown = "3 conversations, c1 and its forks c2, c3"
    with Terminal(tea, "forget", "c1", "--cascade") as terminal:
        terminal.wait_for(f"Remove {shown}, for good? [y/N]")
        terminal.type("n\n")
        assert terminal.end() == 1
    assert tea("forget", "c1", "--cascade", "--yes").err == f"{shown}, are forgotten\n"
    assert tea("timeline", "--list").err == "no conversation yet\n"


def test_a_store_that_is_not_there_is_not_created_to_change_what_is_in_it(tea: Loopline) -> None:
    commands = [
        ("forget", "c1", "--yes"),
        ("forget-user", "ann", "--yes"),
        ("forget-inactive", "--days", "1", "--yes"),
        ("answer", "-c", "c1"),
        ("memory", "edit", "f1", "I drink water."),
        ("memory", "remove", "f1"),
    ]
    for command in commands:
        ran = tea(*command, "--store", "sqlite:///elsewhere.db")
        assert (command, ran.code, "there is no store at" in ran.err) == (command, 1, True)
        assert list(tea.folder.glob("elsewhere*")) == [], command


def test_a_user_is_exported_and_forgotten_whole(tea: Loopline) -> None:
    for name in ("c1", "c2"):
        tea("run", "guide", QUESTION, "-c", name, "--user", "ann")
    tea("run", "guide", QUESTION, "-c", "c1")
    exported = tea("export-user", "ann", "of-ann")
    assert (exported.code, exported.err) == (0, "2 documents in of-ann\n")
    again = tea("export-user", "ann", "of-ann")
    assert (again.code, "of-ann exists already" in again.err) == (1, True)
    assert tea("forget-user", "ann").code == 2
    assert tea("forget-user", "ann", "--yes").err == "2 conversations of the user ann forgotten\n"
    assert tea("timeline", "--list", "--user", "ann").err == "no such conversation\n"
    assert tea("read", "ar:turn_1.user.prompt", "-c", "c1").code == 0
    assert tea("import", "of-ann/1.json", "--user", "ann", "--as", "back").code == 0


def test_what_was_used_lately_is_not_forgotten_as_inactive(tea: Loopline) -> None:
    for days in ("0", "-3", "99999999999", "many"):
        wrong = tea("forget-inactive", "--days", days, "--yes")
        assert (wrong.code, "--days" in wrong.err, "Traceback" in wrong.err) == (2, True, False)
    tea("run", "guide", QUESTION, "-c", "c1")
    assert tea("forget-inactive", "--days", "30", "--yes").err == "0 conversations forgotten\n"
    assert tea("read", "ar:turn_1.user.prompt", "-c", "c1").code == 0


def test_the_latest_conversation_is_one_of_the_project_that_is_run_in(tea: Loopline) -> None:
    async def converse_elsewhere() -> None:
        store = f"sqlite:///{tea.folder}/.loopline/loopline.db"
        async with Harness.open(tea.folder / "guide", store=store) as harness:
            await harness.conversation("theirs", project="other").say(QUESTION)

    tea("run", "guide", QUESTION, "-c", "ours")
    asyncio.run(converse_elsewhere())
    assert "conversation ours (the latest)" in tea("run", "guide").err


def test_a_turn_goes_on_when_the_reader_of_its_steps_has_gone(tea: Loopline) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [LOOPLINE, "run", "guide", QUESTION, "-c", "c1"],
        cwd=tea.folder,
        env=tea.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=writer,
        check=False,
    )
    os.close(writer)
    assert ran.returncode == 0
    assert ran.stdout.decode() == tea("run", "guide", QUESTION, "-c", "c2").out
    assert tea.blocks("c1")[-1]["body"]["reason"] == "complete"


def test_fork_prints_the_name_of_the_new_conversation(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1")
    first, second = tea("fork", "c1", "--seq", "1"), tea("fork", "--seq", "1", "--name", "other")
    assert (first.out, second.out) == ("c1-fork-1\n", "other\n")
    assert [block["type"] for block in tea.blocks("other")] == ["user.prompt"]


def test_feedback_is_recorded_and_taken_back(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1")
    assert tea("feedback", "turn_1", "not_ok", "--text", "too short").code == 0
    assert tea("feedback", "1", "none").code == 0
    bodies = [block["body"] for block in tea.blocks("c1") if block["type"] == "turn.feedback"]
    assert [(body.get("reaction"), body.get("text")) for body in bodies] == [
        ("not_ok", "too short"),
        (None, ""),
    ]
    missing = tea("feedback", "turn_2", "ok")
    assert (missing.code, "no turn 'turn_2': here is turn_1" in missing.err) == (1, True)


def test_a_reader_that_has_read_enough_is_no_failure(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1")
    ran = tea.paste("set -o pipefail; loopline export c1 | head -c 1")
    assert (ran.out, ran.err, ran.code) == ("{", ran.err, 0)
    assert "error" not in ran.err


def test_an_error_is_json_where_json_was_asked_for(tea: Loopline) -> None:
    ran = tea("run", "guid", QUESTION, "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["error_type"] == "BundleError"
    assert "no bundle 'guid'" in json.loads(ran.out)["error"]


def test_a_file_that_is_not_there_is_named(tea: Loopline) -> None:
    ran = tea("import", "nope.json")
    assert (ran.code, "error: nope.json: No such file or directory" in ran.err) == (1, True)


def test_the_version_is_printed(tea: Loopline) -> None:
    ran = tea("--version")
    assert ran.out.startswith("loopline 0.")


def test_a_conversation_is_named_with_or_without_its_option(tea: Loopline) -> None:
    for name in ("c1", "c2"):
        tea("run", "guide", QUESTION, "-c", name)
    assert tea("export", "-c", "c1").out == tea("export", "c1").out != tea("export", "c2").out
    assert tea("fork", "-c", "c1", "--seq", "1").code == 0
    both = tea("timeline", "c1", "-c", "c2")
    assert (both.code, "two conversations are named" in both.err) == (2, True)


def test_what_is_asked_of_no_conversation_is_an_error(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1")
    unknown = tea("answer", "-c", "c2")
    assert (unknown.code, "no conversation 'c2'" in unknown.err) == (1, True)
    for line in ("read ar:turn_1.user.prompt -c", "feedback turn_1 ok -c", "fork --seq 1"):
        assert tea(*line.split(), "c2").err == unknown.err
    (tea.folder / "other.json").write_text('{"teas": 3}')
    imported = tea("import", "other.json")
    assert (imported.code, "the document is not an exported conversation" in imported.err) == (
        1,
        True,
    )


def test_an_export_of_no_conversation_is_the_error_of_the_timeline(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1", "--user", "ann")
    expected = tea("timeline", "c1")
    assert "no conversation 'c1' of the user 'local'" in expected.err
    for options in ((), ("--html",)):
        ran = tea("export", "c1", *options)
        assert (ran.code, ran.out, ran.err) == (1, "", expected.err)


def test_a_new_conversation_does_not_get_the_name_of_a_forgotten_one(asker: Loopline) -> None:
    for name in ("asker-1", "asker-2"):
        assert f"-c {name}" in asker("run", "asker", "shopping").err
        assert asker("forget", name, "--yes").code == 0
    assert "-c asker-3" in asker("run", "asker", "shopping").err
    assert asker("forget", "asker-3", "--yes").code == 0
    assert "conversation asker-4" in asker("chat", "asker", stdin="shopping\n").err
