"""What every test shares: two flags, the settings of property tests, a word on stale builds."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Those of `tests/sim/test_fresh_worlds.py`: a third of a second each, on one core.
FRESH_WORLDS = 240
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


def first_fresh_seed() -> int:
    """Where the worlds of `tests/sim/test_fresh_worlds.py` begin: the hash of the commit."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=SOURCES,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return 1_000_000  # no repository
    return 1_000_000 + int(found.stdout[:8], 16)


@pytest.fixture(scope="session")
def fresh_seed() -> int:
    return first_fresh_seed()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the fresh worlds, and the compiled modules that are older than their source."""
    if any(
        "test_fresh_worlds" in report.nodeid
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ):
        replay = f"tidelog sim --from {first_fresh_seed()} --seeds {FRESH_WORLDS}"
        terminalreporter.write_line(f"Fresh worlds: {replay}")
    for source in stale_builds(SOURCES):
        terminalreporter.write_line(
            f"{source.name} is newer than its compiled module, which these tests ran: "
            "make install builds it again.",
            yellow=True,
        )
