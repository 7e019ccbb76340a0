"""What every test shares: two flags, the settings of property tests, a word on stale builds."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SOURCES = Path(__file__).resolve().parent.parent / "src"

# No deadline and no complaint about slow generation: a shared machine is slow at times, and a test
# that depends on its speed says nothing about the code.
settings.register_profile(
    "tidelog", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tidelog")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags that let the long tests run and that write the scripts anew."""
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")
    parser.addoption(
        "--rewrite", action="store_true", help="write what happens now into tests/scripts/*.txt"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests unless they were asked for."""
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: give --slow to run it"))


def stale_builds(sources: Path) -> list[Path]:
    """Return the sources that changed after they were compiled: Python would run the old ones."""
    return sorted(
        source
        for compiled in sources.rglob("*.so")
        if (source := compiled.with_name(compiled.name.split(".")[0] + ".py")).exists()
        and source.stat().st_mtime > compiled.stat().st_mtime
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so when a compiled module is older than its source, since the tests ran the old one."""
    for source in stale_builds(SOURCES):
        terminalreporter.write_line(
            f"{source.name} is newer than its compiled module, which these tests ran: "
            "make install builds it again.",
            yellow=True,
        )
