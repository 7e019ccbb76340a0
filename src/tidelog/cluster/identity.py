"""Who a node is: more than its number, and as durable as its memory.

`node.json` in the data directory begins with the directory and is lost with it:

    birth       random, made once for each directory; a node that lost its disk has another one
    cluster_id  of the cluster that this directory belongs to; it never takes part in another
    revision    of this node's place in group 0; none before a founding, or before a majority of
                group 0 granted one
    since       the revision that the birth began with: a replica here with an older one, or the
                same, was assigned to a former self and is lost
    address     where others reached the node last: if something else answers there, this node must
                not start

The file is replaced as a whole. The registry (`registry.py`) tells which replicas the node has.
"""

import base64
import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.cluster import strictjson
from tidelog.cluster.errors import StartFailed
from tidelog.cluster.model import Address
from tidelog.raft.types import NodeId
from tidelog.storage import Disk, replace_file

IDENTITY: Final = "node.json"
_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class Identity:
    format: int
    id: NodeId
    birth: str
    cluster_id: str  # "" before the founding, or before this node joined
    revision: int | None
    since: int
    births: Mapping[str, str]  # of all founders, by id, on a node that founded the cluster
    address: Address | None

    @classmethod
    def new(cls, node: NodeId) -> "Identity":
        return cls(_FORMAT, node, uuid.uuid4().hex, "", None, 0, {}, None)


def load_identity(data: Path) -> Identity | None:
    """Return the identity of a data directory, None if it has none; raises `StartFailed`."""
    path = data / IDENTITY
    try:
        return strictjson.read_format(Identity, path.read_bytes(), _FORMAT)
    except FileNotFoundError:
        return None
    except strictjson.OtherFormat as error:
        remedy = (
            "upgrade this node"
            if error.is_newer
            else "start this node with that release, or with an empty data directory"
        )
        raise StartFailed(f"{path} was written by another release: {error}. {remedy}") from error
    except (OSError, strictjson.NotThis) as error:
        raise StartFailed(
            f"{path} cannot be read: {error}. Restore it, or remove it: the node then joins its"
            " cluster as a new one and rebuilds its replicas from the others"
        ) from error


def save_identity(disk: Disk, identity: Identity) -> None:
    """Replace the identity; durable when this returns."""
    replace_file(disk, IDENTITY, [strictjson.write(identity)])


def cluster_id_of(births: Mapping[str, str]) -> str:
    """The id of the cluster that these founders found: the same on each of them."""
    return _id_of(",".join(f"{node}:{births[node]}" for node in sorted(births)))


def recovered_id(before: str) -> str:
    """A new id for a cluster that goes on without its majority: another one each time."""
    return _id_of(f"{before}:{uuid.uuid4().hex}")


def _id_of(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()


def controller_directory(revision: int) -> str:
    """Where the replica of group 0 is that has this revision."""
    return "controller" if revision == 0 else f"controller-r{revision}"
