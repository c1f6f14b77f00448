"""Processes that are killed: forked from one that has built what each needs, so that each costs but what it does."""

from __future__ import annotations

import multiprocessing

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(
    [
        "tests.support.crashing_child_runs",
        "tests.support.crashing_turns",
        "tests.support.killed_processes",
        "tests.support.encoded",
    ]
)
