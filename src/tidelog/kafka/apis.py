"""The table of what a node serves: every API of the Kafka front, its versions and its handler.

The oldest versions are those of Kafka 2.1, as far as their messages are still known, the newest
what is served whole. A new API is one line here.
"""

from typing import Final

from tidelog.kafka import (
    acls,
    alterconfigs,
    cluster,
    deleterecords,
    describeconfigs,
    describeproducers,
    elections,
    epochs,
    fetch,
    listoffsets,
    logdirs,
    metadata,
    operations,
    produce,
    producerids,
    reassignment,
    topics,
)
from tidelog.kafka.codec import API_VERSIONS, OPERATIONS
from tidelog.kafka.dispatch import Api, Handler, Table
from tidelog.kafka.versions import api_versions

# API key: oldest version, newest version, handler.
HANDLERS: Final[dict[int, tuple[int, int, Handler]]] = {
    2: (listoffsets.MIN_VERSION, listoffsets.MAX_VERSION, listoffsets.handle_list_offsets),
    19: (2, 7, topics.handle_create_topics),
    20: (1, 6, topics.handle_delete_topics),
    21: (0, 2, deleterecords.handle_delete_records),
    23: (epochs.MIN_VERSION, epochs.MAX_VERSION, epochs.handle_offset_for_leader_epoch),
    29: (1, 3, acls.handle_describe_acls),
    30: (1, 3, acls.handle_create_acls),
    31: (1, 3, acls.handle_delete_acls),
    32: (1, 4, describeconfigs.handle_describe_configs),
    33: (0, 2, alterconfigs.handle_alter_configs),
    35: (1, 5, logdirs.handle_describe_log_dirs),
    37: (0, 3, topics.handle_create_partitions),
    43: (0, 2, elections.handle_elect_leaders),
    44: (0, 1, alterconfigs.handle_incremental_alter_configs),
    45: (0, 1, reassignment.handle_alter_partition_reassignments),
    46: (0, 0, reassignment.handle_list_partition_reassignments),
    60: (0, 2, cluster.handle_describe_cluster),
    61: (0, 0, describeproducers.handle_describe_producers),
}


def default_table() -> Table:
    """Return what every node serves; coordinators add theirs with `Table.add_all`."""
    table = Table()
    table.add_all(HANDLERS)
    table.add(
        Api(0, produce.MIN_VERSION, produce.MAX_VERSION, raw=produce.handle_produce, pipelined=True)
    )
    table.add(Api(1, fetch.MIN_VERSION, fetch.MAX_VERSION, raw=fetch.Fetcher().handle))
    topology = metadata.MetadataHandlers()
    table.add(Api(3, 0, 13, topology.metadata))
    table.add(Api(75, 0, 0, topology.describe_topic_partitions))
    ids = producerids.ProducerIds()
    table.add(Api(22, producerids.MIN_VERSION, producerids.MAX_VERSION, ids.handle))
    table.add(Api(API_VERSIONS, 0, 4, api_versions(table)))
    table.add(Api(OPERATIONS, 0, 0, raw=operations.handle_operation, announced=False))
    return table
