"""The client: what Python users, the command line and Spark tasks import to use a cluster.

    errors        what can go wrong, as sentences
    messages      requests and answers in the newest version that both sides know
    retry         deadlines and backoff
    connection    one connection: frames and correlation ids
    cluster       who is who, and calls that find their node
    admin, groups topics, settings, moves; groups and their offsets
    offsets       first, last, and by time
    producer      batches, in order, without doubles
    fetcher       batches from given offsets, following the leaders
    consumer      a member of a group
    operations    Tidelog's own operations, which Kafka's protocol has no words for

and, imported by name since only those who want Arrow should pay for it,

    blocking      the client for plain code, on a thread of its own
    arrowread     ranges of partitions as Arrow batches
    arrowwrite    Arrow columns to topics, once (arrowplace: where they go; identity: who writes)

All but `operations` work against any Kafka cluster. Everything runs on the caller's event loop:

    async with Cluster("localhost:9092") as cluster:
        async with Producer(cluster) as producer:
            await producer.write("orders", b"hello")
"""

from tidelog.client.admin import WHOLE_CLUSTER, Admin, Move, Resource, Setting
from tidelog.client.cluster import Cluster
from tidelog.client.consumer import GroupConsumer
from tidelog.client.errors import (
    BadAnswer,
    ClientError,
    Disconnected,
    Refused,
    TimedOut,
    UnknownTopic,
    Unreachable,
    Unsupported,
)
from tidelog.client.fetcher import Fetched, FetchedRecord, Fetcher, positions_at
from tidelog.client.groups import GroupAdmin, GroupInfo, GroupListing, Member
from tidelog.client.model import Metadata, Node, PartitionInfo, TopicInfo, TopicPartition
from tidelog.client.offsets import EARLIEST, LATEST, bounds, list_offsets
from tidelog.client.operations import operate
from tidelog.client.producer import Producer, Written

__all__ = [
    "EARLIEST",
    "LATEST",
    "WHOLE_CLUSTER",
    "Admin",
    "BadAnswer",
    "ClientError",
    "Cluster",
    "Disconnected",
    "Fetched",
    "FetchedRecord",
    "Fetcher",
    "GroupAdmin",
    "GroupConsumer",
    "GroupInfo",
    "GroupListing",
    "Member",
    "Metadata",
    "Move",
    "Node",
    "PartitionInfo",
    "Producer",
    "Refused",
    "Resource",
    "Setting",
    "TimedOut",
    "TopicInfo",
    "TopicPartition",
    "UnknownTopic",
    "Unreachable",
    "Unsupported",
    "Written",
    "bounds",
    "list_offsets",
    "operate",
    "positions_at",
]
