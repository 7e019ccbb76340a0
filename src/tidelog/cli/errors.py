"""How a command that failed tells why: a sentence for people, or JSON for programs.

Rules:
- With `--json` anywhere on the command line, an error is one line on the error stream,
  {"error": {"kind": "unknown_topic", "message": "Topic nope does not exist. ..."}},
  and there is nothing else on that stream. Standard output holds results only.
- The exit status is the same with and without `--json`: 1 for bad news, 2 for a wrong command line.
- `kind` is for programs and stays; `message` is for people and may change.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, NoReturn

import typer

FAILED: Final = "failed"  # the kind of bad news that has no narrower name
USAGE: Final = "usage"
INTERNAL: Final = "internal"

_as_json: ContextVar[bool] = ContextVar("errors_as_json", default=False)


def asks_for_json(line: Sequence[str]) -> bool:
    """Tell whether a command line has `--json`, whether or not the rest of it makes sense."""
    return "--json" in line[: line.index("--")] if "--" in line else "--json" in line


def wants_json() -> bool:
    """Whether the command that runs was asked for JSON."""
    return _as_json.get()


def fail(why: str | Exception, advice: str = "") -> NoReturn:
    """End the command with exit status 1 because of bad news."""
    message = f"{sentence(str(why))} {advice}".rstrip()
    if wants_json():
        _emit(kind_of(why) if isinstance(why, Exception) else FAILED, message)
    else:
        typer.echo(f"tidelog: {message}", err=True)
    raise typer.Exit(1)


def sentence(message: str) -> str:
    stop = "" if message.endswith((".", "?", "!")) else "."
    return f"{message[:1].upper()}{message[1:]}{stop}"


def kind_of(error: Exception) -> str:
    """Return a name for an error that a program can compare with."""
    code = getattr(error, "code", None)  # what Kafka calls it
    if isinstance(name := getattr(code, "name", None), str):
        return name
    if isinstance(problem := getattr(error, "problem", None), str):  # what Tidelog calls it
        return re.sub(r"\W+", "_", problem.lower())
    if isinstance(error, OSError):
        return "system"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(error).__name__).lower()


def run_for_programs(main: Callable[[], Any]) -> NoReturn:
    """Run a command whose errors are JSON; `main` raises them, and returns an exit status."""
    token = _as_json.set(True)
    try:
        status = main()
    except typer.Abort:
        status = 1
    except Exception as error:  # noqa: BLE001  # a program reads JSON, whatever went wrong
        status = _report(error)
    finally:
        _as_json.reset(token)
    sys.exit(status if isinstance(status, int) else 0)


def _report(error: Exception) -> int:
    # Releases of typer differ in where the classes of wrong command lines live, not in their form.
    status, tell = getattr(error, "exit_code", None), getattr(error, "format_message", None)
    if isinstance(status, int) and callable(tell):
        _emit(USAGE, sentence(tell()))
        return status
    _emit(
        INTERNAL,
        f"{type(error).__name__}: {error} (this is a defect of tidelog; without --json there is a"
        " traceback)",
    )
    return 1


def _emit(kind: str, message: str) -> None:
    text = json.dumps({"error": {"kind": kind, "message": message}}, ensure_ascii=False)
    typer.echo(text, err=True)
