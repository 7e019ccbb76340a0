"""Fixtures: each form of the kernels in turn."""

import pytest
from tests.records.forms import Form, built, compile_in, sources, without_cython


@pytest.fixture(scope="session")
def plain() -> Form:
    """The sources as Python runs them, without Cython anywhere."""
    with without_cython():
        return Form.load(sources(), "plain_")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Form:
    """The sources as Cython compiles them, running without Cython."""
    paths = built() or compile_in(tmp_path_factory.mktemp("compiled"))
    if paths is None:
        pytest.skip("there is no Cython or no C compiler here, so nothing is compiled")
    with without_cython():
        return Form.load(paths)


@pytest.fixture(scope="session", params=["plain", "compiled"])
def form(request: pytest.FixtureRequest) -> Form:
    """Both forms, one after the other: every claim holds for each."""
    found: Form = request.getfixturevalue(request.param)
    return found
