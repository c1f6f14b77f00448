"""The options of a program of this folder: `--seed 7` for a number, `--json` for a setting that is off."""

from __future__ import annotations

import argparse


def read_options(about: str | None, **defaults: float | str | bool) -> argparse.Namespace:
    """Return the values of these options on the command line, each of the type of its default."""
    parser = argparse.ArgumentParser(description=about)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args()
