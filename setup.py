"""Builds the compiled modules; everything else about the project is in pyproject.toml.

Rules:
- A compiled module is an ordinary typed .py file that Cython also understands (pure-Python mode).
  There is one source. Compiled or not, it gives the same answers, and a test runs both.
- Compiling is optional. Without Cython, without a C compiler, or with TIDELOG_PURE_PYTHON=1 in the
  environment, the install succeeds and Python runs the source itself, more slowly.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

# Dotted names of the modules that are worth compiling: loops over batches and records, no more.
COMPILED = ["tidelog.records.framing", "tidelog.records.kernels", "tidelog.records.scanning"]


def extensions() -> list[Extension]:
    """Return what can be compiled here: perhaps nothing, which is fine."""
    if os.environ.get("TIDELOG_PURE_PYTHON", "") not in {"", "0"}:
        return []
    sources = {name: "src/" + name.replace(".", "/") + ".py" for name in COMPILED}
    present = {name: source for name, source in sources.items() if Path(source).exists()}
    if not present:
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        sys.stderr.write("tidelog: Cython is not installed, so nothing is compiled\n")
        return []
    # -O3 over the -O2 of many builds of Python: these loops are small and gain from unrolling.
    modules = [
        Extension(name, [source], extra_compile_args=["-O3"]) for name, source in present.items()
    ]
    built: list[Extension] = cythonize(
        modules,
        build_dir="build/cython",
        language_level=3,
        compiler_directives={"embedsignature": True},
    )
    for module in built:
        # A missing or failing C compiler is then a warning. It is set here because cythonize makes
        # new objects and does not carry it over.
        module.optional = True
    return built


setup(ext_modules=extensions())
