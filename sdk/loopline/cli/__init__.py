"""The command `loopline`: it runs, checks and creates bundles, and shows what they did."""

try:
    from loopline.cli.app import app
except KeyboardInterrupt:  # during the import
    raise SystemExit(130) from None

__all__ = ["app", "main"]


def main() -> None:
    """Run the command."""
    app()
