"""What most benchmarks send: how their producers are set, and to how many partitions."""

PARTITIONS = 12
SINGLE = {"batch.size": "1", "linger.ms": "0"}
BULK = {"acks": "all", "batch.size": "65536", "linger.ms": "5", "buffer.memory": "33554432"}
