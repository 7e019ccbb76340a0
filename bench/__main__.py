"""`python -m bench [--quick] [NAME ...]`: run the benchmarks, all of them or those named."""

import argparse
import importlib
import os
import pkgutil
import platform
import time
from collections.abc import Iterator
from typing import Protocol, cast

import bench


class Benchmark(Protocol):
    NAME: str

    def run(self, *, quick: bool = False) -> Iterator[str]:
        """Measure, and yield lines to print as they come."""


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


def main() -> None:
    """Run what was asked for."""
    available = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(available))
    parser.add_argument("--quick", action="store_true", help="less data, rougher figures")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in available]
    if unknown:
        parser.error(f"no benchmark named {unknown[0]}; there are {', '.join(available)}")
    print(
        f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()},"
        f" {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    )
    for name in arguments.names or _usual(available):
        print(f"\n== {name}", flush=True)
        began = time.perf_counter()
        for line in available[name].run(quick=arguments.quick):
            print(f"   {line}", flush=True)
        print(f"   ({time.perf_counter() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
