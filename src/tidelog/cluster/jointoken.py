"""The cluster's secret outside of memory: its file in a data directory, and tokens that carry it.

A node needs the secret before it can talk to any other (`rpc.secret`). It finds it, in this order,

    in DATA/secret.json    where it kept it when it first started
    in a join token        `--token`, `--token-file`, $TIDELOG_TOKEN or the configuration file
    nowhere                then a node that founds a cluster alone makes one; any other cannot start

The file is the only copy on a disk, readable by its owner alone. The secret never leaves a node
over the network, so a token is made on the machine of a member, from that file.
"""

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from tidelog.rpc.frames import MAX_NAME
from tidelog.rpc.secret import SECRET_SIZE, Secret

SECRET_FILE: Final = "secret.json"
VERSION: Final = 1  # of the file and of what a token contains
PREFIX: Final = "tidelog1_"
MAX_TOKEN: Final = 64 << 10
MAX_SEEDS: Final = 64  # any one of them is enough to join
_CRC_SIZE: Final = 4

MAKE_ONE: Final = (
    "If the cluster exists, run `tidelog node token --data DIR` on the machine of a member, where"
    " DIR is its data directory. If its nodes are to found it together, run"
    " `tidelog node token --new` once. Then start each node with the token that was printed:"
    " `tidelog start --token-file FILE`, or TIDELOG_TOKEN in the environment, or `token_file` in"
    " the configuration file"
)


class InvalidToken(ValueError):
    """This is not a join token; the message says why, and what to do."""


class SecretTrouble(Exception):
    """A node does not know the secret of its cluster; the message says what to do."""


class Place(NamedTuple):
    """A node that a newcomer can ask."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class JoinToken:
    """What a newcomer has to know, as one printable word."""

    secret: Secret
    cluster_id: str = ""  # empty: the cluster is not founded yet
    seeds: tuple[Place, ...] = ()

    def encode(self) -> str:
        content = _content(self.secret, self.cluster_id, self.seeds[:MAX_SEEDS])
        body = json.dumps(content, separators=(",", ":")).encode()
        return PREFIX + _text(body + crc32c(body).to_bytes(_CRC_SIZE, "big"))

    @classmethod
    def decode(cls, text: str) -> "JoinToken":
        text = text.strip()
        if not text.startswith(PREFIX) or len(text) > MAX_TOKEN:
            raise InvalidToken(
                f"this is not a join token, which begins with {PREFIX}: use what"
                " `tidelog node token` prints"
            )
        try:
            data = _bytes(text.removeprefix(PREFIX))
            body, crc = data[:-_CRC_SIZE], data[-_CRC_SIZE:]
            if crc32c(body).to_bytes(_CRC_SIZE, "big") != crc:
                raise ValueError
            return cls(*_read(json.loads(body)))
        except _NewerVersion as error:
            raise InvalidToken(f"this join token is of {error}: upgrade this node") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InvalidToken(
                "this join token is damaged or not complete: copy the whole word that"
                " `tidelog node token` prints"
            ) from None


@dataclass(frozen=True, slots=True)
class Kept:
    """What a node knows about its cluster before it has talked to any other."""

    secret: Secret
    cluster_id: str = ""  # empty: not known yet
    seeds: tuple[Place, ...] = ()  # members that the join token named


def read_secret(data: Path) -> Kept | None:
    """Return what this data directory keeps, or None; raises `SecretTrouble`."""
    path = data / SECRET_FILE
    try:
        return Kept(*_read(json.loads(path.read_bytes())))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise SecretTrouble(
            f"{path} cannot be read: use the account that runs the node, which alone may read it"
        ) from error
    except OSError as error:
        raise SecretTrouble(f"{path} cannot be read: {error.strerror}") from error
    except _NewerVersion as error:
        raise SecretTrouble(f"{path} is of {error}: upgrade this node") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SecretTrouble(
            f"{path} is damaged. Remove it and start the node with a join token. {MAKE_ONE}"
        ) from None


def keep_secret(data: Path, kept: Kept) -> None:
    """Write the file, readable by its owner alone; on disk when this returns."""
    content = _content(kept.secret, kept.cluster_id, kept.seeds)
    write_private(data / SECRET_FILE, json.dumps(content) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its owner may read; on disk when this returns."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # it may have been made with another mode
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def settle_secret(data: Path, token: JoinToken | None, *, alone: bool) -> Kept:
    """Return what a node that starts is to use, and keep it; raises `SecretTrouble`.

    `alone`: it founds a cluster by itself unless it is a member of one already.
    """
    kept = read_secret(data)
    if kept is not None and token is not None:
        if kept.secret != token.secret:
            raise SecretTrouble(
                f"the join token is of another cluster than {data / SECRET_FILE}. To start this"
                " node where it was, leave the token out; to let it join the other cluster, give it"
                " an empty data directory"
            )
        if kept.cluster_id and token.cluster_id and kept.cluster_id != token.cluster_id:
            raise SecretTrouble(
                f"the join token is of cluster {token.cluster_id!r} and {data} of"
                f" {kept.cluster_id!r}: leave the token out, or use an empty data directory"
            )
    if kept is not None:
        return kept
    if token is not None:
        kept = Kept(token.secret, token.cluster_id, token.seeds)
    elif alone:
        kept = Kept(Secret.new())
    else:
        raise SecretTrouble(f"this node does not know the secret of its cluster. {MAKE_ONE}")
    try:
        keep_secret(data, kept)
    except OSError as error:
        raise SecretTrouble(f"{data / SECRET_FILE} cannot be written: {error.strerror}") from error
    return kept


class _NewerVersion(Exception):
    pass


def _content(secret: Secret, cluster_id: str, seeds: tuple[Place, ...]) -> dict[str, Any]:
    """Return what the file and a token both contain."""
    key = _text(secret.reveal())
    return {"version": VERSION, "secret": key, "cluster_id": cluster_id, "seeds": seeds}


def _read(content: Any) -> tuple[Secret, str, tuple[Place, ...]]:
    """Read what `_content` made; fields that a later release added are passed over."""
    if content["version"] != VERSION:
        raise _NewerVersion(f"version {content['version']!r}, and this release knows {VERSION}")
    key, cluster_id = _bytes(content["secret"]), content["cluster_id"]
    if not isinstance(cluster_id, str) or len(cluster_id.encode()) > MAX_NAME:
        raise ValueError
    if len(key) != SECRET_SIZE:
        raise ValueError
    return Secret(key), cluster_id, tuple(_place(each) for each in content["seeds"])


def _place(value: Any) -> Place:
    number, host, port = value
    if type(number) is not int or type(host) is not str or type(port) is not int:
        raise ValueError
    return Place(number, host, port)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
