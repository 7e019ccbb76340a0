"""The `tidelog` command: one module per subcommand, each a thin front of the room it drives."""

from tidelog.cli.app import main

__all__ = ["main"]
