"""Shells complete the commands and options of `loopline`."""

from __future__ import annotations

import pytest
from click.shell_completion import get_completion_class

from loopline.cli import app

VARIABLE = "_LOOPLINE_COMPLETE"


@pytest.mark.parametrize(
    ("words", "begun", "completed"),
    [
        ([], "ti", ["timeline"]),
        (["run"], "--st", ["--store"]),
        (["presets"], "d", ["diff"]),
        (["prompt"], "--ro", ["--round"]),
        (["prompt", "--cache"], "an", ["anthropic"]),
    ],
)
def test_a_shell_completes_commands_options_and_values(
    words: list[str], begun: str, completed: list[str]
) -> None:
    shell = get_completion_class("bash")
    assert shell is not None
    items = shell(app, {}, "loopline", VARIABLE).get_completions(words, begun)
    assert [item.value for item in items] == completed


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_names_the_variable(name: str) -> None:
    shell = get_completion_class(name)
    assert shell is not None
    completion = shell(app, {}, "loopline", VARIABLE)
    assert f"{VARIABLE}={name}_complete" in completion.source_template % completion.source_vars()
