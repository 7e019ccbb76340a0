"""The Kafka front: what makes a node look like a broker to Kafka's clients.

reading, codec   messages: bytes that nobody vouches for to objects, and back
limits           every bound of a listener, and its counters
dispatch         what a handler is; the table of APIs and versions
connection       one client: frames in, answers out, in order
server           the listener: all connections, and the bounds on their sum
apis             the table itself
errors, view     the cluster's problems as Kafka's codes; the cluster as clients see it
produce, fetch   the data plane: `produceform` and `fetchform` are their bytes, written by hand
                 with `primitives`; `sessions` is what a listener remembers of consumers;
                 `leadership` tells clients where else to go
versions ...     one module a family of APIs
"""

from tidelog.kafka.limits import Limits, Stats
from tidelog.kafka.server import KafkaServer

__all__ = ["KafkaServer", "Limits", "Stats"]
