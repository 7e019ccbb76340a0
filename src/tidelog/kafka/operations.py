"""The private API of Tidelog's own command line: JSON in, JSON out.

It goes through the same listener as everything else, so that a command needs one address only. No
client of Kafka knows it and ApiVersions does not tell of it. What an operation means is the node's
business.
"""

from tidelog.kafka.dispatch import Context, RawAnswer


async def handle_operation(context: Context, _version: int, body: memoryview) -> RawAnswer:
    return [await context.node.operate(body)]
