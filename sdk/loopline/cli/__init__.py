"""The command `loopline`: bundles are run, talked to and checked, and what they did is read again."""

try:
    from loopline.cli.app import app
except KeyboardInterrupt:  # while all that is being imported
    raise SystemExit(130) from None

__all__ = ["app", "main"]


def main() -> None:
    """Do what the command line says."""
    app()
