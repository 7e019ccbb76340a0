"""Where reads begin and end: the options turned into offsets, by asking the cluster.

Rules, which are those of Spark's own Kafka source:
- A time beats offsets; a partition where no record is as young ends at its end, and begins there
  only if the strategy says so.
- Positions by partition must name exactly the partitions that are read.
- A stream finds partitions that were added since it began, and reads them from their first record.
- What was promised and is gone (a partition, or the offsets before which reading was to begin) is
  data loss: an error, or a warning with `failOnDataLoss` = false.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping

from tidelog.client import Cluster, TopicPartition, UnknownTopic, bounds, list_offsets
from tidelog.client.arrowread import DataLost
from tidelog.client.blocking import Blocking, shared
from tidelog.spark.options import (
    EARLIEST,
    LATEST,
    Client,
    OptionError,
    Place,
    ReadOptions,
    Strategy,
)
from tidelog.spark.ranges import Positions, Slice, limit_rows, slices, split

log = logging.getLogger(__name__)

NO_RECORD = -1  # no record is as young as the time that was asked for


def connect(client: Client) -> Blocking:
    """Return this process's client of a cluster."""
    return shared(client.bootstrap, client_id=client.client_id, timeout=client.timeout)


class Planner:
    """Turns the options of a read into offsets."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._known: list[TopicPartition] = []
        self._known_at = -float("inf")

    @property
    def _blocking(self) -> Blocking:
        return connect(self._options.client)

    def batch(self) -> list[Slice]:
        """Return the tasks of a batch read."""
        partitions = self.partitions()
        start = self.start(partitions)
        end = self._resolve(self._options.end, partitions, at_end=True)
        found = slices(start, end)
        if self._options.row_limit is not None:
            found = limit_rows(found, self._options.row_limit)
        return self.tasks(found)

    def tasks(self, whole: Iterable[Slice]) -> list[Slice]:
        """Cut slices as the options ask for."""
        return split(whole, self._options.min_partitions, self._options.max_records)

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that are read, as they are now or were a moment ago."""
        age = time.monotonic() - self._known_at
        if not self._known or age >= self._options.metadata_seconds:
            self._known = self._blocking.run(self._find(self._blocking.cluster))
            self._known_at = time.monotonic()
        return self._known

    def start(self, partitions: list[TopicPartition]) -> Positions:
        """Return where a new query begins."""
        return self._resolve(self._options.start, partitions, at_end=False)

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the ends of partitions."""
        return self._blocking.run(
            list_offsets(
                self._blocking.cluster,
                dict.fromkeys(partitions, LATEST),
                committed=self._options.committed,
            )
        )

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the first offsets of partitions."""
        return self._blocking.run(
            list_offsets(self._blocking.cluster, dict.fromkeys(partitions, EARLIEST))
        )

    def lost(self, what: str) -> None:
        """Say that data is lost, as the options ask for."""
        if self._options.fail_on_loss:
            raise DataLost(
                f"{what} Records are lost, or may be. To go on with what is there, set "
                "`failOnDataLoss` to false."
            )
        log.warning(what)

    # --- Inside -----------------------------------------------------------------------------------

    async def _find(self, cluster: Cluster) -> list[TopicPartition]:
        topics = self._options.topics
        if topics.pattern is not None:
            pattern = re.compile(topics.pattern)
            metadata = await cluster.metadata()
            names = [
                name
                for name, info in metadata.topics.items()
                if pattern.fullmatch(name) and not info.internal
            ]
        else:
            names = [*topics.names, *dict.fromkeys(each.topic for each in topics.partitions)]
        found: list[TopicPartition] = []
        for name in names:
            try:
                info = await cluster.topic(name, fresh=True)
            except UnknownTopic:
                option = "subscribe" if topics.names else "assign"
                raise OptionError(
                    f"`{option}` names topic {name!r}, which does not exist. Create it first, with "
                    f"`tidelog topic create {name}`."
                ) from None
            found += [TopicPartition(name, each.index) for each in info.partitions]
        if topics.partitions:
            missing = set(topics.partitions) - set(found)
            if missing:
                raise OptionError(f"`assign` names partition {min(missing)}, which does not exist.")
            return sorted(topics.partitions)
        return sorted(found)

    def _resolve(
        self, place: Place, partitions: list[TopicPartition], *, at_end: bool
    ) -> Positions:
        wanted = self._spread(place, partitions)
        if place.is_time:
            return self._by_time(place, wanted, at_end=at_end)
        symbolic = {partition: offset for partition, offset in wanted.items() if offset < 0}
        found = dict(wanted)
        for which, ask in ((EARLIEST, self.earliest), (LATEST, self.latest)):
            asked = [partition for partition, offset in symbolic.items() if offset == which]
            if asked:
                found.update(ask(asked))
        fixed = [partition for partition in wanted if partition not in symbolic]
        self._check_fixed(place, fixed, found)
        return found

    def _spread(
        self, place: Place, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        if place.everywhere is not None:
            return dict.fromkeys(partitions, place.everywhere)
        wrong = set(partitions) ^ set(place.each)
        if wrong:
            first = min(wrong)
            problem = "is not named" if first in partitions else "is not read"
            raise OptionError(
                f"`{place.option}` must name exactly the partitions that are read: {first} "
                f"{problem}. Use -2 for the earliest offset and -1 for the latest."
            )
        return place.each

    def _by_time(
        self, place: Place, wanted: Mapping[TopicPartition, int], *, at_end: bool
    ) -> Positions:
        found = self._blocking.run(list_offsets(self._blocking.cluster, dict(wanted)))
        late = [partition for partition, offset in found.items() if offset == NO_RECORD]
        if late and not at_end and self._options.strategy is Strategy.ERROR:
            raise OptionError(
                f"`{place.option}`: partition {late[0]} has no record at or after "
                f"{wanted[late[0]]} ms. Take an earlier time, or set "
                "`startingOffsetsByTimestampStrategy` to latest."
            )
        if late:
            found.update(self.latest(late))
        return found

    def _check_fixed(self, place: Place, fixed: list[TopicPartition], found: Positions) -> None:
        """Compare offsets that were given as numbers with what the partitions have."""
        if not fixed:
            return
        limits = self._blocking.run(bounds(self._blocking.cluster, fixed))
        for partition, (first, end) in limits.items():
            offset = found[partition]
            if not first <= offset <= end:
                self.lost(
                    f"`{place.option}` asks for offset {offset} of partition {partition}, which "
                    f"holds {first} to {end - 1}."
                )
                found[partition] = min(max(offset, first), end)
