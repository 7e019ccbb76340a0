"""How long one small write takes: `python -m bench._soak.probe TOPIC SECONDS ADDRESS...`.

A process of its own, so that what the load does in Python is not part of the figure. It writes one
record at acks=all, waits for the answer, rests a moment, and says every so many seconds: p50, p99
and the longest, in milliseconds, and how many there were. A write that meets a fault counts from
its first attempt. It ends with its standard input.
"""

import select
import sys
import time

from bench import _wire
from bench._machine import BenchFailed

REST_S = 0.04


def main() -> None:
    topic, seconds, *addresses = sys.argv[1:]
    request = _wire.produce(topic)
    with _wire.Nodes(addresses) as nodes:
        while True:
            took: list[float] = []
            until = time.monotonic() + float(seconds)
            while time.monotonic() < until:
                began = time.monotonic()
                try:
                    took.append(nodes.first_success(request) - began)
                except BenchFailed as failure:
                    print(f"# {failure}", file=sys.stderr, flush=True)
                    took.append(time.monotonic() - began)
                if select.select([sys.stdin], [], [], REST_S)[0]:
                    return
            took.sort()
            middle, high = took[len(took) // 2], took[int(0.99 * (len(took) - 1))]
            row = (1000 * middle, 1000 * high, 1000 * took[-1])
            print(*(f"{each:.2f}" for each in row), len(took), flush=True)


if __name__ == "__main__":
    main()
