"""What the definitions of a project read and write: seen while Spark is told about them.

Definitions reach Spark as messages of Spark Connect. They pass through here, and every use of
format("tidelog") in them is noted, however the project's files came to write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.pipelines.spark_connect_graph_element_registry import (
    SparkConnectGraphElementRegistry,
)

FORMAT: Final = "tidelog"


@dataclass(frozen=True, slots=True)
class Use:
    """A flow or a sink that uses format("tidelog")."""

    name: str
    options: Mapping[str, str]  # names in lower case
    writes: bool

    @property
    def topics(self) -> list[str]:
        """The topics that are named; none for a pattern, or for a lake."""
        text = self.options.get("topic" if self.writes else "subscribe", "")
        if "lake" in self.options:
            return []
        return [name.strip() for name in text.split(",") if name.strip()]

    @property
    def bootstrap(self) -> str | None:
        """The cluster."""
        return self.options.get("kafka.bootstrap.servers")


class Definitions(SparkConnectGraphElementRegistry):
    """Tells Spark about definitions, and notes what they use."""

    def __init__(self, spark: Any, graph: str) -> None:
        super().__init__(spark, graph)
        self._client: Any = _Listening(self._client)

    @property
    def uses(self) -> list[Use]:
        """What the definitions use."""
        found: list[Use] = self._client.uses
        return found


class _Listening:
    """A Spark Connect client that looks at the commands it passes on."""

    def __init__(self, client: Any) -> None:
        self._passed_to = client
        self.uses: list[Use] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._passed_to, name)

    def execute_command(self, command: Any) -> Any:
        pipeline = command.pipeline_command
        kind = pipeline.WhichOneof("command_type")
        if kind == "define_flow":
            for source in _sources(pipeline.define_flow):
                self._note(pipeline.define_flow.flow_name, source, writes=False)
        elif kind == "define_output":
            sink = pipeline.define_output.sink_details
            self._note(pipeline.define_output.output_name, sink, writes=True)
        return self._passed_to.execute_command(command)

    def _note(self, name: str, found: Any, *, writes: bool) -> None:
        if found.format.lower() == FORMAT:
            options = {key.lower(): value for key, value in found.options.items()}
            self.uses.append(Use(name, options, writes))


def _sources(message: Any) -> Iterator[Any]:
    """Return the data sources inside a message, at any depth."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        repeated = not hasattr(value, "ListFields")
        for each in value if repeated else (value,):
            if field.message_type.full_name == "spark.connect.Read.DataSource":
                yield each
            else:
                yield from _sources(each)
