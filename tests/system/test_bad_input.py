"""Clients that send nonsense to a node that runs, while others go on as if nothing were the matter.

A node answers with the right error code or closes that one connection. It stays, it serves
everybody else, it does not grow, and it does not fill its log.
"""

from __future__ import annotations

import contextlib
import random
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode
from tests.kafka.desk import build
from tests.system import messages
from tests.system.system import System, system, until
from tests.system.wire import API_VERSIONS, FETCH, METADATA, PRODUCE, Closed, Wire, frame

from tidelog.kafka import codec
from tidelog.kafka.apis import default_table
from tidelog.kafka.codec import OPERATIONS
from tidelog.storage import FileBudget

MIB = 1 << 20
NODE = 1
# Whatever is done to a node, it needs no more than this beyond what it had: the bounds of its
# listener are 256 MiB of requests and 256 MiB of answers.
MEMORY = 600 * MIB
# Lines of its log, whatever is done to it. Complaints are limited to some a second.
LINES = 2_000
# Seconds of damaged requests.
FUZZ_S = 20.0
# Files of the test itself: what pytest, the logs and the clients need.
SPARE_FILES = 200


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One node, which all tests of this module mistreat."""
    with system(tmp_path_factory.mktemp("node"), nodes=1) as running:
        running.create("t", replicas=1)
        running.create("fuzz", replicas=1)
        running.create("large", replicas=1)
        yield running


@contextlib.contextmanager
def unharmed(node: System, memory: int = MEMORY, lines: int = LINES) -> Iterator[None]:
    """Let a well-behaved client write and read all the while; then look at the node."""
    before, said = node.memory(NODE), node.log_of(NODE).count("\n")
    pid = node.cluster.pid(NODE)
    stop = threading.Event()
    errors: list[BaseException] = []
    done = [0]

    def behave() -> None:
        try:
            with node.wire(NODE) as wire:
                while not stop.is_set():
                    value = f"well-behaved {done[0]}".encode()
                    answer = wire.produce("t", value)
                    assert answer.error_code is ErrorCode.none
                    fetched = wire.fetch("t", answer.base_offset)
                    assert fetched.error_code is ErrorCode.none
                    assert value in fetched.records
                    done[0] += 1
                    time.sleep(0.01)
        except BaseException as error:  # noqa: BLE001  # raised again on the test's thread
            errors.append(error)

    thread = threading.Thread(target=behave, daemon=True)
    thread.start()
    try:
        until(lambda: errors or done[0] > 5, "a client to be served")
        yield
        served = done[0] + 5
        until(lambda: errors or done[0] > served, "a client to be served afterwards")
    finally:
        stop.set()
        thread.join(30)
    if errors:
        raise errors[0]
    assert node.cluster.pid(NODE) == pid
    grown = node.memory(NODE) - before
    assert grown < memory, f"the node has {grown / MIB:.0f} MiB more than before"
    log = node.log_of(NODE)
    assert log.count("\n") - said < lines, log[-2000:]


def closes(node: System, data: bytes) -> bool:
    """Send bytes and tell whether the connection is closed without an answer."""
    with node.wire(NODE) as wire:
        try:
            wire.send(data)
            wire.receive()
        except Closed:
            return True
        return False


def served(node: System) -> dict[int, range]:
    """Return the versions of every API: those that the node announces, and those it does not."""
    with node.wire(NODE) as wire:
        answer = wire.ask(API_VERSIONS, 3, client_software_name="test", client_software_version="1")
    announced = {
        int(each.api_key): range(each.min_version, each.max_version + 1) for each in answer.api_keys
    }
    secret = {
        api.key: range(api.min_version, api.max_version + 1)
        for api in default_table()
        if not api.announced
    }
    assert OPERATIONS in secret.keys() - announced.keys()
    return announced | secret


def produce_body(records: bytes, topic: str = "t") -> bytes:
    topic_data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return codec.encode(
        build(
            PRODUCE,
            9,
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=5),
            topic_data=topic_data,
        )
    )


def write_raw(wire: Wire, records: bytes) -> Any:
    """Write bytes as they are; return what the answer says of the partition."""
    answer = wire.ask(
        PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=timedelta(seconds=5),
        topic_data=[{"name": "fuzz", "partition_data": [{"index": 0, "records": records}]}],
    )
    return answer.responses[0].partition_responses[0]


# --- Batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "value", "codes"),
    [
        (16, b"\x00", {ErrorCode.unsupported_for_message_format, ErrorCode.invalid_record}),
        (16, b"\x01", {ErrorCode.unsupported_for_message_format, ErrorCode.invalid_record}),
        (16, b"\x03", {ErrorCode.corrupt_message, ErrorCode.invalid_record}),
        (16, b"\x7f", {ErrorCode.corrupt_message, ErrorCode.invalid_record}),
        (17, b"\xde\xad\xbe\xef", {ErrorCode.corrupt_message}),
        (70, b"\xff", {ErrorCode.corrupt_message}),
        (8, b"\x7f\xff\xff\xff", {ErrorCode.corrupt_message, ErrorCode.invalid_record}),
        (8, b"\x00\x00\x00\x01", {ErrorCode.corrupt_message, ErrorCode.invalid_record}),
        (8, b"\xff\xff\xff\xff", {ErrorCode.corrupt_message, ErrorCode.invalid_record}),
        (57, b"\x7f\xff\xff\xff", {ErrorCode.corrupt_message, ErrorCode.invalid_record}),
    ],
    ids=[
        "magic 0",
        "magic 1",
        "magic 3",
        "magic 127",
        "crc",
        "a byte of a record",
        "length too long",
        "length too short",
        "length below zero",
        "count of records",
    ],
)
def test_a_batch_that_is_none_is_refused(
    node: System, at: int, value: bytes, codes: set[ErrorCode]
) -> None:
    broken = bytearray(messages.BATCH)
    broken[at : at + len(value)] = value
    with unharmed(node), node.wire(NODE) as wire:
        end = wire.list_offset("fuzz", -1).offset
        answer = write_raw(wire, bytes(broken))
        assert answer.error_code in codes
        assert wire.list_offset("fuzz", -1).offset == end


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (57, b"\x7f\xff\xff\xff"),
        (57, b"\x00\x00\x00\x00"),
        (23, b"\x7f\xff\xff\xff"),
        (23, b"\xff\xff\xff\xff"),
        (22, b"\x20"),
        (43, b"\x80\x00\x00\x00\x00\x00\x00\x00"),
    ],
    ids=["many records", "no records", "last offset", "offset below zero", "control", "producer"],
)
def test_a_header_that_lies_below_a_valid_crc_is_refused(
    node: System, at: int, value: bytes
) -> None:
    broken = bytearray(messages.BATCH)
    broken[at : at + len(value)] = value
    broken[17:21] = struct.pack(">I", crc32c(bytes(broken[21:])))
    with unharmed(node), node.wire(NODE) as wire:
        end = wire.list_offset("fuzz", -1).offset
        answer = write_raw(wire, bytes(broken))
        assert answer.error_code in {ErrorCode.corrupt_message, ErrorCode.invalid_record}
        assert wire.list_offset("fuzz", -1).offset == end


def test_records_that_lie_below_a_valid_crc_are_refused(node: System) -> None:
    broken = bytearray(messages.BATCH)
    broken[61:63] = b"\xff\x7f"  # the length of the first record
    broken[17:21] = struct.pack(">I", crc32c(bytes(broken[21:])))
    with unharmed(node), node.wire(NODE) as wire:
        end = wire.list_offset("fuzz", -1).offset
        answer = write_raw(wire, bytes(broken))
        assert answer.error_code is ErrorCode.invalid_record
        assert wire.list_offset("fuzz", -1).offset == end


# --- Frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        struct.pack(">i", 2**31 - 1) + b"\x00" * 100,
        struct.pack(">i", -1) + b"\x00" * 100,
        struct.pack(">i", 0) + b"\x00" * 100,
        struct.pack(">ihhih", 10, 0, 9, 1, 2**15 - 1) + b"\x00" * 50,
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, -1, 0, 1, -1),
        struct.pack(">ihhih", 10, PRODUCE, 99, 1, -1),
        struct.pack(">ihhih", 10, FETCH, -1, 1, -1),
        struct.pack(">ihhih", 10, METADATA, 2**15 - 1, 1, -1),
    ],
    ids=[
        "HTTP",
        "TLS",
        "2 GiB",
        "length below zero",
        "nothing",
        "client id too long",
        "unknown API",
        "API below zero",
        "unknown version",
        "version below zero",
        "highest version",
    ],
)
def test_what_is_no_request_ends_that_connection(node: System, data: bytes) -> None:
    with unharmed(node):
        assert closes(node, data)


def test_an_unknown_version_of_api_versions_is_answered(node: System) -> None:
    with unharmed(node), node.wire(NODE) as wire:
        wire.send(struct.pack(">ihhih", 10, API_VERSIONS, 99, 7, -1))
        received = wire.receive()
        correlation_id, code = struct.unpack_from(">ih", received)
        assert correlation_id == 7
        assert code == ErrorCode.unsupported_version.value
        assert wire.metadata().controller_id == NODE  # the connection is as good as before


def test_gigantic_arrays_are_refused_in_every_api(node: System) -> None:
    chance = random.Random(5)
    with unharmed(node, memory=200 * MIB):
        for api_key, versions in served(node).items():
            for version in versions:
                body = messages.request(api_key, version, chance)
                for huge in (messages.HUGE, messages.HUGE_VARINT):
                    # Nothing that is announced follows, so nothing of it can be believed.
                    with contextlib.suppress(Closed, OSError), node.wire(NODE) as wire:
                        wire.send(frame(api_key, version, huge * 3))
                        wire.send(frame(api_key, version, body[: len(body) // 2] + huge))
                        wire.socket.shutdown(socket.SHUT_WR)
                        while True:
                            wire.receive()


def test_half_requests_cost_little(node: System) -> None:
    """They promise 100 MiB each, and send a little of it."""
    with unharmed(node, memory=200 * MIB), contextlib.ExitStack() as stack:
        for _ in range(300):
            wire = stack.enter_context(node.wire(NODE))
            wire.send(struct.pack(">ihhih", 100 * MIB, PRODUCE, 9, 1, -1) + bytes(1000))
        time.sleep(2.0)


def test_requests_that_come_byte_by_byte_are_served(node: System) -> None:
    asked = build(
        METADATA,
        12,
        topics=[],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    body = codec.encode(asked)
    with unharmed(node), node.wire(NODE) as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame(METADATA, 12, body):
            wire.send(bytes((byte,)))
        assert len(wire.receive()) > 20


# --- Damage -------------------------------------------------------------------------------------


def mistreat(node: System, seed: int, seconds: float) -> dict[str, int]:
    """Send damaged requests of every API, several a connection; count what came of it."""
    chance = random.Random(seed)
    apis = [(key, version) for key, all_of in served(node).items() for version in all_of]
    count = {"answered": 0, "closed": 0}
    deadline = time.monotonic() + seconds
    wire = None
    while time.monotonic() < deadline:
        chance.shuffle(apis)
        for api_key, version in apis:
            whole = messages.request(api_key, version, chance)
            body = messages.damaged(whole, chance)
            sent = frame(api_key, version, body)
            if chance.random() < 0.1:  # the header is damaged as well, but not the length
                sent = sent[:4] + messages.damaged(sent[4:14], chance)[:10].ljust(10) + sent[14:]
            wire = wire or Wire(node.addresses[NODE], 5.0)
            try:
                wire.send(sent)
                if not may_answer(wire):
                    raise Closed("no answer is due")
                wire.receive()
                count["answered"] += 1
            except (Closed, TimeoutError):
                count["closed"] += 1
                wire.close()
                wire = None
            if time.monotonic() > deadline:
                break
    if wire is not None:
        wire.close()
    return count


def may_answer(wire: Wire) -> bool:
    """Wait a moment for an answer. Some requests wait as long as they were told to."""
    return bool(select.select([wire.socket], [], [], 0.2)[0])


def test_damaged_requests_of_every_api(node: System) -> None:
    with unharmed(node, memory=250 * MIB):
        count = mistreat(node, 1, FUZZ_S)
    assert count["answered"] > 100
    assert count["closed"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_damaged_requests_of_every_api_for_longer(node: System, seed: int) -> None:
    with unharmed(node):
        mistreat(node, seed, 60.0)


def test_noise(node: System) -> None:
    chance = random.Random(3)
    with unharmed(node):
        for _ in range(300):
            with contextlib.suppress(Closed), node.wire(NODE) as wire:
                wire.send(chance.randbytes(chance.randrange(1, 3000)))


# --- Many, and slow -----------------------------------------------------------------------------


def connect_many(node: System, count: int) -> None:
    """Keep this many connections open that say nothing, or as many as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        # The node has the same limit, and gives a part of it to clients.
        count = min(count, hard - SPARE_FILES, FileBudget.of(hard).clients - SPARE_FILES)
        with unharmed(node, memory=count * 40_000), contextlib.ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(node.wire(NODE))
            with node.wire(NODE) as wire:  # one more is served
                assert wire.produce("t", b"in a crowd").error_code is ErrorCode.none
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_idle_connections(node: System) -> None:
    connect_many(node, 5_000)


@pytest.mark.slow
def test_ten_thousand_idle_connections(node: System) -> None:
    connect_many(node, 10_000)


def test_connections_that_come_and_go(node: System) -> None:
    with unharmed(node, memory=100 * MIB):
        for _ in range(2_000):
            node.wire(NODE).close()


def test_clients_that_never_read(node: System) -> None:
    """They ask for the same megabyte again and again and take nothing of it."""
    values = [random.Random(7).randbytes(900_000) for _ in range(4)]
    with node.wire(NODE) as wire:
        for value in values:
            assert wire.produce("large", value).error_code is ErrorCode.none
    ask = codec.encode(
        build(
            FETCH,
            12,
            replica_id=-1,
            max_wait=timedelta(0),
            min_bytes=1,
            max_bytes=8 * MIB,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[
                {
                    "topic": "large",
                    "partitions": [
                        {
                            "partition": 0,
                            "current_leader_epoch": -1,
                            "fetch_offset": 0,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 8 * MIB,
                        }
                    ],
                }
            ],
            forgotten_topics_data=[],
            rack_id="",
        )
    )
    with unharmed(node), contextlib.ExitStack() as stack:
        for _ in range(100):
            wire = stack.enter_context(node.wire(NODE))
            with contextlib.suppress(Closed):
                wire.send(frame(FETCH, 12, ask) * 50)
        time.sleep(3.0)


def test_large_requests_from_many_at_once(node: System) -> None:
    """Forty clients send 20 MiB each that is refused in the end: the sum is bounded even so."""
    body = produce_body(bytes(20 * MIB), "fuzz")
    sent = frame(PRODUCE, 9, body)

    def send() -> None:
        with contextlib.suppress(Closed), node.wire(NODE) as wire:
            wire.send(sent)
            wire.receive()

    with unharmed(node):
        threads = [threading.Thread(target=send, daemon=True) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def test_a_peer_port_takes_no_nonsense(tmp_path: Path) -> None:
    """Nonsense on the port for other nodes ends that connection, and nothing else."""
    chance = random.Random(11)
    with system(tmp_path, nodes=1) as node:
        node.create("t", replicas=1)
        text = (node.cluster.node(NODE).directory / "node.toml").read_text()
        port = int(text.split("[rpc]")[1].split("port = ")[1].split("\n")[0])
        with unharmed(node):
            for _ in range(300):
                with contextlib.suppress(Closed), Wire(f"127.0.0.1:{port}") as wire:
                    wire.send(chance.randbytes(chance.randrange(1, 2000)))
        with Wire(f"127.0.0.1:{port}") as wire:
            wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with pytest.raises(Closed):
                wire.receive()
