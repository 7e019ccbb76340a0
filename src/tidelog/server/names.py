"""The names of the files in a node's directory that are not its data."""

from typing import Final

NODE_FILE: Final = "node.toml"  # what the node was told
PID_FILE: Final = "pid"  # its process, while it runs
SERVING_FILE: Final = "serving.json"  # where it serves clients, once it does
LOG_FILE: Final = "node.log"  # what it has to say
