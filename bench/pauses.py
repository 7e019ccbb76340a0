"""How long the largest requests keep a node from everything else.

For every API that is served and each of its arrays, a request as large as may be goes to one node
in this process, and a task on the node's loop tells the longest time that it had to wait. That time
includes what the garbage collector takes and what the thread beside the loop holds the interpreter
for. Below it stands the worst request of each API; `tests/kafka/test_pauses.py` holds a bound on
the work between two turns of the loop, which no machine and no neighbour changes.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench._largest import Large, largest
from bench._watched import watched

NAME = "pauses"
# Elements in one array: as many as most requests may have, and as many as any may.
ELEMENTS = (5_000, 100_000, 1_000_000)
QUICK_ELEMENTS = (5_000, 100_000)


def run(*, quick: bool = False) -> Iterator[str]:
    """Yield a line for each API."""
    yield f"{'API':<32}{'array':<42}{'elements':>10}{'longest pause':>16}"
    data = Path(tempfile.mkdtemp(prefix="tidelog-"))
    try:
        worst: dict[int, tuple[float, Large]] = {}
        with watched(data) as node:
            topic_id = node.create_topic()
            for elements in QUICK_ELEMENTS if quick else ELEMENTS:
                for request in largest(node.server.kafka.table, elements, topic_id):
                    pause = node.pause_ms(request)
                    if pause > worst.get(request.api.key, (-1.0, request))[0]:
                        worst[request.api.key] = pause, request
        for _, (pause, request) in sorted(worst.items()):
            yield (
                f"{request.api.name:<32}{request.array or '-':<42}{request.elements:>10}"
                f"{pause:>13.0f} ms"
            )
    finally:
        shutil.rmtree(data, ignore_errors=True)
