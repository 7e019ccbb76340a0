"""What groups may do, and how much of it: timeouts and bounds, with the names Kafka gives them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """All times are milliseconds."""

    # group.min.session.timeout.ms, group.max.session.timeout.ms
    min_session_timeout: int = 6_000
    max_session_timeout: int = 1_800_000
    # group.initial.rebalance.delay.ms: how long an empty group waits for more members before its
    # first generation, so that ten consumers that start together cause one rebalance and not ten.
    # Each that comes makes it wait as long again. Kafka waits 3 s; consumers that one command
    # starts come within a fraction of that, and everybody else waits for nothing.
    initial_rebalance_delay: int = 500
    # How long a member whose first join is waiting may be silent: its client may be gone, and it
    # sends no heartbeat before it has joined.
    new_member_timeout: int = 300_000
    # A rebalance waits for its slowest member; no member may make it wait longer than this.
    max_rebalance_timeout: int = 3_600_000
    # group.max.size, also for the new protocol
    max_members: int = 5_000
    # Member ids that were handed out (KIP-394) and not used yet, in one group.
    max_pending_members: int = 5_000
    # Groups in one partition of the internal topic, with and without members. About 2 KB each at
    # rest.
    max_groups: int = 20_000
    # Names that clients choose: of groups, members, instances, protocols. The records of the log
    # have 16 bits for the length of a name, and names are put together from names.
    max_name_bytes: int = 4_096
    # What one member may send with its join: all its protocols together.
    max_member_bytes: int = 256 * 1024
    # The largest record the internal topic takes; a generation is one record.
    max_record_bytes: int = 1_000_000
    # offset.metadata.max.bytes
    max_offset_metadata_bytes: int = 4_096
    max_offsets_per_group: int = 200_000
    # One request, in one step: the node does nothing else meanwhile, about 10 us for each.
    max_offsets_per_commit: int = 50_000
    # offsets.retention.minutes and offsets.retention.check.interval.ms
    offset_retention: int = 7 * 24 * 3_600_000
    retention_check_interval: int = 600_000
    # group.consumer.session.timeout.ms, group.consumer.heartbeat.interval.ms. A member hears of a
    # rebalance with its next heartbeat, and one takes up to three of them; Kafka's 5 s make that
    # 15 s, and a thousand members with 2 s cost 500 small requests a second.
    consumer_session_timeout: int = 45_000
    consumer_heartbeat_interval: int = 2_000
    # The same for a member that waits for partitions of others: it asks whether they let go.
    consumer_waiting_interval: int = 500
    # Records and answers that wait for the log, in one partition of the internal topic. Beyond
    # this, requests are refused with an error that makes clients try again.
    max_pending_steps: int = 10_000
    max_pending_bytes: int = 16 * 1024 * 1024
    # What one append to the log carries at most, unless a single record is larger, and how many
    # may be under way; what comes meanwhile shares the next one.
    max_append_bytes: int = 512 * 1024
    max_appends: int = 4
    # offsets.commit.timeout.ms: how long a write may take. What became of it is not known then, so
    # the log is read again.
    write_timeout: int = 10_000
