"""A pipeline project on disk: its specification, its state, and how a new one begins.

    spark-pipeline.yml     Spark's specification: name, storage, files; where cluster and lake are
    transformations/       the definitions, in Python and SQL
    state/                 what runs leave: checkpoints, the catalog, tables, the last log

A run resumes from `state`. Deleting it begins anew, from the first records that the topics have.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.spark.pipelines.ends import BOOTSTRAP, DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from pyspark.pipelines.cli import PipelineSpec

SPEC: Final = "spark-pipeline.yml"
_SPECS: Final = (SPEC, "spark-pipeline.yaml")
_TEMPLATE: Final = Path(__file__).parent / "template"
_BOOTSTRAP_SETTING: Final = "spark.tidelog.bootstrap"
_LAKE_SETTING: Final = "spark.tidelog.lake"


class ProjectError(Exception):
    """A project is not there, not whole, or busy."""


@dataclass(frozen=True, slots=True)
class Project:
    """A directory with a pipeline in it."""

    directory: Path

    @property
    def spec_path(self) -> Path:
        """The specification; raises `ProjectError`."""
        for name in _SPECS:
            if (self.directory / name).is_file():
                return self.directory / name
        raise ProjectError(
            f"{self.directory} has no {SPEC}: `tidelog pipeline init {self.directory}` makes a "
            "project."
        )

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def log(self) -> Path:
        """What Spark said during the last run."""
        return self.state / "spark.log"

    def spec(self) -> PipelineSpec:
        """Read the specification; raises `ProjectError`."""
        import yaml
        from pyspark.errors import PySparkException
        from pyspark.pipelines.cli import load_pipeline_spec

        try:
            return load_pipeline_spec(self.spec_path)
        except (PySparkException, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
            raise ProjectError(f"{self.spec_path} cannot be used: {error}") from None

    def bootstrap(self, given: str | None) -> str:
        """Return where the cluster is: as given, as specified, as usual."""
        specified = self.spec().configuration.get(_BOOTSTRAP_SETTING)
        return given or os.environ.get(BOOTSTRAP) or specified or DEFAULT_BOOTSTRAP

    def lake(self, given: str | None) -> str:
        """Return where the lake is: as given, as specified, in the project."""
        place = given or self.spec().configuration.get(_LAKE_SETTING) or "lake"
        return place if "://" in place else str((self.directory / place).resolve())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second run of the same project out: it would use the same checkpoints."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ProjectError(
                    f"Another run of {self.directory} is going on: wait for it, or stop it."
                ) from None
            yield


def create(directory: Path, *, name: str | None = None, bootstrap: str | None = None) -> Project:
    """Write a new project with the sample in it; raises `ProjectError` if something is there."""
    directory = directory.resolve()
    if directory.exists() and any(directory.iterdir()):
        raise ProjectError(f"{directory} is not empty: choose another directory.")
    words: dict[str, Any] = {
        "NAME": name or directory.name,
        "STORAGE": (directory / "state" / "checkpoints").as_uri(),
        "BOOTSTRAP": bootstrap or os.environ.get(BOOTSTRAP) or DEFAULT_BOOTSTRAP,
    }
    for source in sorted(_TEMPLATE.rglob("*")):
        if source.is_file():
            target = directory / source.relative_to(_TEMPLATE).with_suffix("")
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            for word, value in words.items():
                text = text.replace("{{ " + word + " }}", str(value))
            target.write_text(text)
    return Project(directory)
