"""The names of the files in a node's directory that are not its data."""

from typing import Final

NODE_FILE: Final = "node.toml"  # what the node was told
SERVING_FILE: Final = "serving.json"  # where it serves clients, once it does
LOG_FILE: Final = "node.log"  # its log; older lines in node.log.1 and so on
TOKEN_FILE: Final = "join-token"  # of the cluster, beside the directories of its nodes
