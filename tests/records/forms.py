"""The two forms of the kernels, plain and compiled, side by side in one process."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from types import ModuleType
from unittest import mock

from tidelog.records import arrow, builder, intake

ROOM = Path(builder.__file__).parent
NAMES = ("framing", "kernels", "scanning")

_BUILD = f"""
from setuptools import Extension, setup
from Cython.Build import cythonize
modules = [Extension(name, [name + ".py"]) for name in {NAMES}]
setup(name="kernels", ext_modules=cythonize(modules))
"""


@dataclass(frozen=True, slots=True)
class Form:
    """The modules that can be compiled, all of them in one form."""

    framing: ModuleType
    kernels: ModuleType
    scanning: ModuleType

    @classmethod
    def load(cls, paths: Iterable[Path], prefix: str = "") -> "Form":
        """Load each module under a name of its own; a compiled one knows only its own name."""
        modules = zip(NAMES, paths, strict=True)
        return cls(**{name: load(path, prefix + name) for name, path in modules})


@contextmanager
def without_cython() -> Iterator[None]:
    """Make `import cython` fail, as it does where only the runtime is installed."""
    with mock.patch.dict(sys.modules, {"cython": None}):
        yield


def load(path: Path, name: str) -> ModuleType:
    """Load one form of a module under a name of its own."""
    kind = SourceFileLoader if path.suffix == ".py" else ExtensionFileLoader
    spec = importlib.util.spec_from_loader(name, kind(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sources() -> list[Path]:
    """Return the sources, which are the plain form."""
    return [ROOM / f"{name}.py" for name in NAMES]


def built() -> list[Path] | None:
    """Return the compiled modules that the install left beside the sources, if none is older."""
    for suffix in EXTENSION_SUFFIXES:
        paths = [source.with_suffix(suffix) for source in sources()]
        if all(
            path.exists() and path.stat().st_mtime >= source.stat().st_mtime
            for path, source in zip(paths, sources(), strict=True)
        ):
            return paths
    return None


def compile_in(directory: Path) -> list[Path] | None:
    """Compile the sources in a directory of their own; None without Cython or a C compiler."""
    if importlib.util.find_spec("Cython") is None or not (
        shutil.which("cc") or shutil.which("gcc")
    ):
        return None
    for source in sources():
        shutil.copy(source, directory)
    command = [sys.executable, "-c", _BUILD, "-q", "build_ext", "--inplace"]
    environment = os.environ | {"CFLAGS": "-O1"}  # soon done; only the answers matter here
    subprocess.run(command, cwd=directory, check=True, capture_output=True, env=environment)
    return [next(directory.glob(name + "*" + EXTENSION_SUFFIXES[0])) for name in NAMES]


@contextmanager
def using(form: Form) -> Iterator[None]:
    """Let the room run on one form."""
    with (
        mock.patch.object(builder, "kernels", form.kernels),
        mock.patch.object(intake, "kernels", form.kernels),
        mock.patch.object(arrow, "kernels", form.kernels),
        mock.patch.object(arrow, "framing", form.framing),
        mock.patch.object(arrow, "scanning", form.scanning),
    ):
        yield
