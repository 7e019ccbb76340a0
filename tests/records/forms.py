"""The two forms of the kernels, plain and compiled, side by side in one process."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from tidelog.records import arrow, builder, intake

SOURCE = Path(builder.__file__).with_name("kernels.py")

_BUILD = """
from setuptools import Extension, setup
from Cython.Build import cythonize
setup(name="kernels", ext_modules=cythonize([Extension("kernels", ["kernels.py"])]))
"""


@contextmanager
def without_cython() -> Iterator[None]:
    """Make `import cython` fail, as it does where only the runtime is installed."""
    with mock.patch.dict(sys.modules, {"cython": None}):
        yield


def load(path: Path, name: str) -> ModuleType:
    """Load one form of the kernels under a name of its own."""
    kind = SourceFileLoader if path.suffix == ".py" else ExtensionFileLoader
    spec = importlib.util.spec_from_loader(name, kind(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built() -> Path | None:
    """Return the compiled module that the install left beside the source, if it is not older."""
    for suffix in EXTENSION_SUFFIXES:
        path = SOURCE.with_name("kernels" + suffix)
        if path.exists() and path.stat().st_mtime >= SOURCE.stat().st_mtime:
            return path
    return None


def compile_in(directory: Path) -> Path | None:
    """Compile the source in a directory of its own; None without Cython or a C compiler."""
    if importlib.util.find_spec("Cython") is None or not (
        shutil.which("cc") or shutil.which("gcc")
    ):
        return None
    shutil.copy(SOURCE, directory / "kernels.py")
    command = [sys.executable, "-c", _BUILD, "-q", "build_ext", "--inplace"]
    environment = os.environ | {"CFLAGS": "-O1"}  # soon done; only the answers matter here
    subprocess.run(command, cwd=directory, check=True, capture_output=True, env=environment)
    return next(directory.glob("kernels*" + EXTENSION_SUFFIXES[0]))


@contextmanager
def using(form: Any) -> Iterator[None]:
    """Let the room run on one form."""
    with (
        mock.patch.object(builder, "kernels", form),
        mock.patch.object(arrow, "kernels", form),
        mock.patch.object(intake, "kernels", form),
    ):
        yield
