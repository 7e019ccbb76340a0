"""`python -m bench [--quick] [NAME ...]`: run the benchmarks, all of them or those named."""

import argparse
import importlib
import os
import pkgutil
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol, cast

import bench
from bench._compare import ALONE_VARIABLE
from bench._machine import BenchFailed


class Benchmark(Protocol):
    NAME: str

    def run(self, *, quick: bool = False, **options: Any) -> Iterator[str]:
        """Measure, and yield lines to print as they come.

        A benchmark with options of its own has them in `ARGUMENTS`: name to type, default and help.
        """


def benchmarks() -> dict[str, Benchmark]:
    """Every module of this package that measures something."""
    found: dict[str, Benchmark] = {}
    for info in pkgutil.iter_modules(bench.__path__):
        if not info.name.startswith("_"):
            module = cast(Benchmark, importlib.import_module(f"bench.{info.name}"))
            found[module.NAME] = module
    return found


def _usual(available: dict[str, Benchmark]) -> list[str]:
    """Those that run when none is named."""
    return [name for name, each in available.items() if not getattr(each, "ON_REQUEST", False)]


def _options(benchmark: Benchmark) -> dict[str, tuple[Any, Any, str]]:
    return getattr(benchmark, "ARGUMENTS", {})


def main() -> None:
    """Run what was asked for."""
    available = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(available))
    parser.add_argument("--quick", action="store_true", help="less data, rougher figures")
    parser.add_argument("--alone", action="store_true", help="without Kafka, even if it is there")
    for each in available.values():
        for option, (kind, default, text) in _options(each).items():
            parser.add_argument(f"--{option}", type=kind, default=default, help=text)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in available]
    if unknown:
        parser.error(f"no benchmark named {unknown[0]}; there are {', '.join(available)}")
    print(
        f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()},"
        f" {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    )
    if arguments.alone:
        os.environ[ALONE_VARIABLE] = "1"
    failed = False
    for name in arguments.names or _usual(available):
        print(f"\n== {name}", flush=True)
        began = time.perf_counter()
        options = {option: getattr(arguments, option) for option in _options(available[name])}
        try:
            for line in available[name].run(quick=arguments.quick, **options):
                print(f"   {line}", flush=True)
        except BenchFailed as failure:
            print(f"   FAILED: {failure}", flush=True)
            failed = True
        print(f"   ({time.perf_counter() - began:.1f} s)", flush=True)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
