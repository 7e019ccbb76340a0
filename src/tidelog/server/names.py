"""The names of the files in a node's directory that are not its data, and of what it inherits."""

from typing import Final

NODE_FILE: Final = "node.toml"  # what the node was told
SERVING_FILE: Final = "serving.json"  # where it serves clients, once it does
LOG_FILE: Final = "node.log"  # its log; older lines in node.log.1 and so on
TOKEN_FILE: Final = "join-token"  # of the cluster, beside the directories of its nodes

# Environment variables that hold a join token, or name the file of one. They take the place of what
# the node was told, so they are for nodes that are started by hand.
TOKEN_VARIABLE: Final = "TIDELOG_TOKEN"
TOKEN_FILE_VARIABLE: Final = "TIDELOG_TOKEN_FILE"
