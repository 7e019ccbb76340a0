"""A group of commands that are imported only when they run.

`tidelog --help` shows one line a command, and that line is in the table below the group. The module
of a command, and whatever it needs to declare its options, is imported when the command is called,
completed or asked for its own help.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class Entry:
    """A command that is there, and where to find it."""

    name: str
    where: str  # "package.module:attribute": a function, or a typer application with commands
    summary: str  # its line in the list
    panel: str  # the heading under which it is listed

    def placeholder(self) -> TyperCommand:
        """Return what stands for the command in a list."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self.panel)

    def load(self) -> Any:
        """Import the command."""
        module, _, attribute = self.where.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            function = found
            found = typer.Typer(rich_markup_mode="markdown", add_completion=False)
            found.command(self.name)(function)
        command = typer.main.get_command(found)
        command.name = self.name
        return command


class LazyGroup(TyperGroup):
    """A group whose subclasses have a table of commands."""

    table: ClassVar[tuple[Entry, ...]] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._entries = {entry.name: entry for entry in self.table}
        for entry in self.table:
            self.add_command(entry.placeholder())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that was called, and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        entry = self._entries.get(name or "")
        return name, command if entry is None else entry.load(), rest

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; with `--json` on it, errors are JSON too."""
        line = list(sys.argv[1:] if args is None else args)

        def run(*, standalone: bool) -> Any:
            return super(LazyGroup, self).main(
                line, prog_name, complete_var, standalone, windows_expand_args, **extra
            )

        if "--json" in line and standalone_mode:
            from tidelog.cli.errors import asks_for_json, run_for_programs

            if asks_for_json(line):
                # Errors are raised then, and not printed.
                run_for_programs(lambda: run(standalone=False))
        return run(standalone=standalone_mode)
