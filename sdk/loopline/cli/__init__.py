"""The command `loopline`: bundles are run, talked to and checked, and what they did is read again."""

from loopline.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Do what the command line says."""
    app()
