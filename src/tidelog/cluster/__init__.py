"""A node: partitions driven by asyncio, the controller, membership and placement."""
