"""Consumer groups: who reads which partition, and how far everybody has read.

    hashing      which partition of the internal topic a group lives in
    timers       one heap for all deadlines
    outbox       what a step of the core wants written and answered
    wire         the primitive types of Kafka's records, from bytes that are not trusted
    records      keys and values of the internal topic
    offsets      committed offsets of one group
    roster       the members of a classic group and what they agree on
    classic      the classic protocol: join, sync, heartbeat, leave
    assignors    who gets which partition, decided here (KIP-848)
    topicregex   subscription by pattern: RE2, bounded
    topics       what groups need to know about topics
    reconcile    the next step of one member towards its target (KIP-848)
    consumer     the new protocol: one heartbeat does it all (KIP-848)
    loading      groups from the records of the log
    shard        all groups of one partition of the internal topic
    writing      steps to the log, answers back in order
    coordinator  the asyncio driver: loads, writes, answers
    handlers ... Kafka's requests and responses to and from the core: members, offsets, admin

Everything above `writing` is a pure core: no task, no clock, no file. Time comes in as `now`,
in milliseconds; what is to be written and answered comes out through an `Outbox`.

One rule makes fail-over simple. The core changes its state at once; the driver holds each answer
back until everything that was written up to it is committed. When a write fails, the state in
memory is dropped with the answers that waited, and the log is read again by whoever leads next.
"""
