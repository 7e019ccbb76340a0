"""The API of our own command line, over a socket, on a live node."""

import json
import socket
import struct
from pathlib import Path
from typing import Any

import kafka.admin
from tests.kafka.live import Live, live

from tidelog.kafka.codec import OPERATIONS


def send(cluster: Live, body: bytes, correlation_id: int = 7) -> Any:
    """Send one request to the first node and return what it answers."""
    client_id = b"tidelog"
    header = struct.pack(">hhih", OPERATIONS, 0, correlation_id, len(client_id)) + client_id
    request = struct.pack(">i", len(header) + len(body)) + header + body
    where = cluster.addresses[1]
    with socket.create_connection((where.host, where.port), timeout=20) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            size, told = struct.unpack(">ii", stream.read(8))
            assert told == correlation_id
            return json.loads(stream.read(size - 4))


def test_operators_ask_a_live_node_and_clients_of_kafka_are_not_told(tmp_path: Path) -> None:
    with live(tmp_path, 1) as cluster:
        answer = send(cluster, b'{"operation": "status", "arguments": {}}')
        assert answer.keys() == {"result"}
        for nonsense in (b"", b"\xff\x00", b"[]", b'{"operation": 5}', b'{"operation": "dance"}'):
            assert send(cluster, nonsense).keys() == {"error"}
        client = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            assert OPERATIONS not in client.api_versions()
        finally:
            client.close()
