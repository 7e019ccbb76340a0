"""What it costs a leader to look at every record of a batch before it takes it, for each codec.

A batch holds 64 KiB of records of words. Beside the cost of the walk (for a compressed batch, that
of unpacking it as well) stands the processor time that the leader spends on the whole request: it
takes the batch at acks=all, sends it to two followers and writes it.
"""

import random
import socket
import struct
import time
from collections.abc import Iterator
from typing import Final

from bench._clusters import Tidelog
from bench._machine import BenchFailed, cpu_seconds
from bench._wire import PRODUCE, PRODUCE_VERSION, Request, encode_text, receive
from tidelog.records import Batch, Codec, Record, build_batch, kernels, survey_records
from tidelog.storage import wall_ms

NAME = "inspection"
SECTION: Final = 64 * 1024
VALUE_SIZES: Final = (100, 1024)
ROUNDS: Final = 200
REQUESTS: Final = 4_000
QUICK_REQUESTS: Final = 500
IN_FLIGHT: Final = 5
OVERHEAD: Final = 20  # of a record, with its key
MILLION: Final = 1_000_000


def run(*, quick: bool = False) -> Iterator[str]:
    """Yield a table."""
    compiled = "compiled" if kernels.__file__.endswith(".so") else "NOT COMPILED"
    yield f"kernels: {compiled}"
    yield "values      codec     batch   records   the walk   the request   share"
    requests = QUICK_REQUESTS if quick else REQUESTS
    cluster = Tidelog()
    cluster.start(3)
    try:
        topic = cluster.create_topic(1, {})
        leader = cluster.leader(topic)
        address = cluster.bootstrap.split(",")[leader - 1]
        pid = cluster.pid(leader)
        if pid is None:
            raise BenchFailed(f"node {leader}, which leads {topic}, is not running")
        for size in VALUE_SIZES:
            for codec in Codec:
                batch = _batch(size, codec)
                walk = _walk(batch)
                _send(address, topic, batch, requests // 4)  # warm
                before = cpu_seconds([pid])
                _send(address, topic, batch, requests)
                whole = (cpu_seconds([pid]) - before) / requests
                yield (
                    f"{size:>5} B{codec.name.lower():>11}{batch.size:>8} B{batch.count:>10}"
                    f"{walk * MILLION:>8.1f} us{whole * MILLION:>11.0f} us{walk / whole:>8.1%}"
                )
    finally:
        cluster.stop()


def _batch(size: int, codec: Codec) -> Batch:
    rng = random.Random(size)
    words = [bytes(rng.choices(b"abcdefghijklmnop", k=rng.randint(3, 9))) for _ in range(500)]

    def text() -> bytes:
        return b" ".join(rng.choices(words, k=size // 4))[:size]

    count = SECTION // (size + OVERHEAD)
    now = wall_ms()
    return build_batch(
        [Record(place, now, b"key-%08d" % place, text()) for place in range(count)], codec=codec
    )


def _walk(batch: Batch) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        survey_records(batch)
        best = min(best, time.perf_counter() - began)
    return best


def _send(address: str, topic: str, batch: Batch, requests: int) -> None:
    """Send the batch again and again over one connection, five requests in flight."""
    records = bytes(batch.data)
    body = (
        struct.pack(">hhii", -1, -1, 30_000, 1)
        + encode_text(topic)
        + struct.pack(">iii", 1, 0, len(records))
        + records
    )
    at = 4 + 4 + len(encode_text(topic)) + 4 + 4
    request = Request(PRODUCE, PRODUCE_VERSION, body, at)
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        for number in range(requests + IN_FLIGHT):
            if number < requests:
                connection.sendall(request.frame)
            if number >= IN_FLIGHT:
                (size,) = struct.unpack(">i", receive(connection, 4))
                code = request.error(receive(connection, size))
                if code:
                    raise BenchFailed(f"a request was refused with error {code}")
