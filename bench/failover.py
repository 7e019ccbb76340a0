"""How long nobody is served after kill -9: of a leader, of the controller, of a coordinator.

Measured from the kill to the first success: a write acknowledged at acks=all, a topic created, an
offset committed. The nodes that are left are asked in turn, so that no client's patience is part of
the figure. Afterwards the node is started again, and the next round begins when every replica has
caught up.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench import _wire
from bench._clients import Load
from bench._clusters import Cluster, Tidelog
from bench._compare import Row, Values, compare

NAME = "failover"
ROUNDS = {"Tidelog": 7, "Kafka": 3}
QUICK_ROUNDS = {"Tidelog": 3, "Kafka": 1}
GROUPS_TOPIC = "__consumer_offsets"
KAFKA_SETTLE_S = 5.0  # its controllers need a moment more than its brokers


@dataclass(frozen=True)
class Failover:
    """Kill the node that matters for one kind of request, several times."""

    victim: str  # "leader", "controller" or "coordinator"

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        del load  # waiting is measured, not throughput
        rounds = (QUICK_ROUNDS if quick else ROUNDS)[cluster.name]
        pauses = [self._pause(cluster) for _ in range(rounds)]
        return {
            "median_ms": 1000 * statistics.median(pauses),
            "worst_ms": 1000 * max(pauses),
            "rounds": rounds,
        }

    def _pause(self, cluster: Cluster) -> float:
        topic = cluster.create_topic(1, {})
        request, victim = self._choose(cluster, topic)
        with _wire.Nodes(cluster.addresses(besides=victim)) as others:
            killed = cluster.kill(victim)
            try:
                pause = others.first_success(request) - killed
            finally:
                cluster.restart(victim)
        for each in (topic, GROUPS_TOPIC) if self.victim == "coordinator" else (topic,):
            cluster.wait_in_sync(each)
        if not isinstance(cluster, Tidelog):
            time.sleep(KAFKA_SETTLE_S)
        cluster.delete_topic(topic)
        return pause

    def _choose(self, cluster: Cluster, topic: str) -> tuple[_wire.Request, int]:
        """What to ask for, and who would do it now."""
        if self.victim == "leader":
            request = _wire.produce(topic)
            with _wire.Nodes(cluster.addresses()) as nodes:
                nodes.first_success(request)
            return request, cluster.leader(topic)
        if self.victim == "controller":
            return _wire.create_topic(f"{topic}-next"), cluster.controller()
        request = _wire.commit_offset(topic, topic)
        coordinator = cluster.coordinator(topic)
        with _wire.Nodes(cluster.addresses()) as nodes:
            nodes.first_success(request)
        cluster.wait_in_sync(GROUPS_TOPIC)
        return request, coordinator


def rows() -> Iterator[Row]:
    """Median and worst of each kind."""
    for victim, what in (
        ("leader", "leader killed, next acknowledged write"),
        ("controller", "controller killed, next topic created"),
        ("coordinator", "coordinator killed, next offset committed"),
    ):
        probe = Failover(victim)
        for value, label in (("median_ms", "median"), ("worst_ms", "worst")):
            yield Row(f"{what}, {label}", value, "ms", probe, probe)


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure on both sides; nothing here needs a warm JVM."""
    yield from compare(list(rows()), quick=quick, warm=False)
