"""What the commands that run on Spark share: whether it can run here, and its options."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from tidelog.cli.errors import fail

OLDEST_JAVA: Final = 17
_PACKAGES: Final = ("pyspark", "grpc", "yaml", "pyiceberg", "fastavro", "pandas")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Master = Annotated[
    str,
    typer.Option(
        "--master",
        help="Where Spark runs: local[2], spark://host:7077, yarn, k8s://...",
        metavar="MASTER",
    ),
]


def what_is_missing() -> str | None:
    """Return what Spark needs and this machine has not, as a sentence; None if all is there."""
    packages = _missing_packages()
    if packages is not None:
        return packages
    java = _java()
    if java is None:
        return (
            f"Spark needs Java {OLDEST_JAVA} or later, and there is no java on the PATH or in "
            "JAVA_HOME: on Debian, apt-get install openjdk-17-jre-headless."
        )
    version = _java_version(java)
    if version is not None and version < OLDEST_JAVA:
        return f"Spark needs Java {OLDEST_JAVA} or later, and {java} is Java {version}."
    return None


def need_spark() -> None:
    """End the process with a sentence if Spark cannot run here."""
    missing = what_is_missing()
    if missing is not None:
        fail(missing)


def need_packages() -> None:
    """End the process with a sentence if Python packages are missing; Java is not needed."""
    missing = _missing_packages()
    if missing is not None:
        fail(missing)


def _missing_packages() -> str | None:
    packages = [name for name in _PACKAGES if find_spec(name) is None]
    if not packages:
        return None
    return (
        f"Spark needs Python packages that are not here ({', '.join(packages)}): "
        "pip install 'tidelog[spark]'."
    )


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (found := Path(home) / "bin" / "java").exists():
        return str(found)
    return shutil.which("java")


def _java_version(java: str) -> int | None:
    """Return the major version; None if java does not say it in a way that we know."""
    try:
        said = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr)
    return int(found[1]) if found else None


def parse_span(text: str) -> timedelta:
    """Read a length of time such as 30s, 15m, 12h or 7d; a wrong one is a wrong command line."""
    found = re.fullmatch(r"(\d+)([smhd])", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a length of time: write 30s, 15m, 12h or 7d.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
