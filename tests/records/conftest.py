"""Fixtures: each form of the kernels in turn."""

from types import ModuleType

import pytest
from tests.records.forms import SOURCE, built, compile_in, load, without_cython


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """The source as Python runs it, without Cython anywhere."""
    with without_cython():
        return load(SOURCE, "plain_kernels")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The source as Cython compiles it, running without Cython."""
    path = built() or compile_in(tmp_path_factory.mktemp("compiled"))
    if path is None:
        pytest.skip("there is no Cython or no C compiler here, so nothing is compiled")
    with without_cython():
        return load(path, "kernels")


@pytest.fixture(scope="session", params=["plain", "compiled"])
def form(request: pytest.FixtureRequest) -> ModuleType:
    """Both forms, one after the other: every claim holds for each."""
    module: ModuleType = request.getfixturevalue(request.param)
    return module
