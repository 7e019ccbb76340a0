"""Fixtures: clusters of node processes."""

import gc
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.proxy import Proxy, proxied
from tests.system.system import STEADY, System, system


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[System]:
    """Three nodes for one test, which may hurt them."""
    with system(tmp_path) as running:
        yield running


@pytest.fixture
def steady(tmp_path: Path) -> Iterator[System]:
    """The same, but who leads is not deposed because the machine is busy."""
    with system(tmp_path, settings=STEADY) as running:
        yield running


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Three nodes for the tests of one module, which give their topics names of their own."""
    with system(tmp_path_factory.mktemp("calm")) as running:
        yield running


@pytest.fixture
def network(tmp_path: Path) -> Iterator[tuple[System, Proxy]]:
    """Three nodes that reach each other through a proxy."""
    with proxied(tmp_path) as both:
        yield both


@pytest.fixture
def steady_network(tmp_path: Path) -> Iterator[tuple[System, Proxy]]:
    """The same, but who leads is not deposed because the machine is busy."""
    with proxied(tmp_path, settings=STEADY) as both:
        yield both


@pytest.fixture
def tidy(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collect the sockets that clients leave behind if a node was away when they ended.

    They hang on what those clients log as well, so that is not kept.
    """
    for name in ("kafka", "aiokafka"):
        caplog.set_level(logging.CRITICAL, logger=name)
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
