"""What a node is told before it starts: a TOML file, checked whole.

    id = 1
    data = "/var/lib/tidelog"
    token_file = "/etc/tidelog/join-token"
    cluster = "orders"
    rack = "a"

    [rpc]
    port = 9192

    [kafka]
    port = 9092

    [log]
    file = "node.log"
    max_bytes = 10485760
    files = 5

    [[seeds]]
    id = 1
    host = "10.0.0.1"
    port = 9192

The seeds found a new cluster together. A node that is not among them asks them to let it join. All
need the same join token, once (`jointoken.py`); only a node that founds a cluster alone makes the
secret itself. A token that names members takes the place of seeds.
"""

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tidelog.cluster.jointoken import InvalidToken, JoinToken, Place
from tidelog.cluster.model import MAX_NODE_ID

Port = Annotated[int, Field(ge=0, lt=2**16)]


class InvalidNodeConfig(ValueError):
    """The file cannot be used; the message says which setting, and why."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Listener(_Strict):
    host: str = "127.0.0.1"
    port: Port = 0  # 0: any that is free
    # The host and the port that others are told, if they reach this node through something else.
    advertised: str | None = None
    advertised_port: Port = 0

    @property
    def public_host(self) -> str:
        return self.advertised or self.host

    def public_port(self, port: int) -> int:
        """Return the port that others are told when this one is listened on."""
        return self.advertised_port or port


class Seed(_Strict):
    id: Annotated[int, Field(ge=0, le=MAX_NODE_ID)]
    host: str
    port: Annotated[int, Field(ge=1, lt=2**16)]


class LogFile(_Strict):
    """Where log lines go, and how many of them are kept."""

    # None: to the error stream, for a supervisor that keeps it. A relative path begins in `data`.
    file: Path | None = None
    max_bytes: Annotated[int, Field(ge=64 << 10)] = 10 << 20  # of one file
    files: Annotated[int, Field(ge=1, le=1000)] = 5  # the one that is written is among them


class NodeConfig(_Strict):
    id: Annotated[int, Field(ge=0, le=MAX_NODE_ID)]
    data: Path
    cluster: Annotated[str, Field(min_length=1, max_length=200)] = "tidelog"
    # How a node that starts for the first time gets to know the cluster's secret: one of the two.
    token: Annotated[str | None, Field(repr=False)] = None
    token_file: Path | None = None
    rack: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    rpc: Listener = Listener()
    kafka: Listener = Listener()
    seeds: tuple[Seed, ...] = ()
    log: LogFile = LogFile()
    # Batches kept in memory for tail readers and followers, over all partitions of the node.
    cache_bytes: Annotated[int, Field(ge=1 << 20)] = 64 << 20
    heartbeat_ms: Annotated[int, Field(ge=10, le=10_000)] = 100
    # A node that dies is noticed at once, because its connections break. This is for those that
    # fall silent, and a busy machine must not look like one.
    election_timeout_ms: Annotated[int, Field(ge=50, le=60_000)] = 1000
    # How often retention and compaction look at each partition.
    housekeeping_s: Annotated[float, Field(gt=0)] = 10.0
    # Files are read again in the background, to find rot while there are good copies: at most so
    # much a second (0: never), and each file not before it was left alone for so long. 8 MiB/s read
    # 690 GB a day, and take a few percent of a slow disk.
    verify_bytes_per_s: Annotated[int, Field(ge=0)] = 8 << 20
    verify_every_s: Annotated[float, Field(gt=0)] = 86_400.0
    # Room on the disk below which this node leads nothing that another one could, and refuses
    # clients' writes; and below which it does not follow them either (`room.py` has the arithmetic:
    # 256 and 64 MiB, or an eighth and a 32nd of a small disk). 0: never.
    disk_low_bytes: Annotated[int | None, Field(ge=0)] = None
    disk_full_bytes: Annotated[int | None, Field(ge=0)] = None

    @model_validator(mode="after")
    def _check(self) -> "NodeConfig":
        ids = [seed.id for seed in self.seeds]
        if len(set(ids)) != len(ids):
            raise ValueError("two seeds have the same id")
        if self.heartbeat_ms * 3 > self.election_timeout_ms:
            raise ValueError("election_timeout_ms must be at least three times heartbeat_ms")
        low, full = self.disk_low_bytes, self.disk_full_bytes
        if low is not None and full is not None and low < full:
            raise ValueError("disk_low_bytes must not be below disk_full_bytes")
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are two ways to say the same: use one")
        return self

    def join_token(self) -> JoinToken | None:
        """Return the token that this node was given; raises `InvalidToken`."""
        if self.token is not None:
            return JoinToken.decode(self.token)
        if self.token_file is None:
            return None
        try:
            return JoinToken.decode(self.token_file.read_text())
        except InvalidToken as error:
            raise InvalidToken(f"{self.token_file}: {error}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidToken(f"{self.token_file} cannot be read: {error}") from error

    def with_seeds(self, places: tuple[Place, ...]) -> "NodeConfig":
        """Return this with the members that a join token named, unless it names seeds itself.

        They are addresses to ask, not founders: this node is never one of them.
        """
        if self.seeds:
            return self
        others = (each for each in places if each.id != self.id)
        return self.model_copy(update={"seeds": tuple(Seed(**each._asdict()) for each in others)})

    @property
    def founds(self) -> bool:
        """Whether this node is one of those that begin the cluster."""
        return not self.seeds or any(seed.id == self.id for seed in self.seeds)


def load_node_config(path: Path) -> NodeConfig:
    try:
        settings = tomllib.loads(path.read_text())
        return NodeConfig.model_validate(settings)
    except OSError as error:
        raise InvalidNodeConfig(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidNodeConfig(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise InvalidNodeConfig(f"{path}: {faults}") from error
