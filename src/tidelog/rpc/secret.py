"""The secret that all nodes of a cluster share, and how each end of a connection proves it.

    dialer                                   listener
      HELLO (lane, node, cluster, nonce)  -->
                                          <--  HELLO (the same about itself)
                                          <--  PROOF  HMAC-SHA256(secret, "listener" | both HELLOs)
      PROOF  HMAC(secret, "dialer" | ...) -->

Why this is enough to tell members from strangers:
- Each proof covers both HELLOs whole: versions, lane, node ids, cluster and both nonces. A proof of
  another connection, lane, node or cluster is therefore worth nothing, however it was obtained.
- The two proofs carry different labels, so a listener's proof cannot be sent back to it.
- The secret has 256 random bits and never travels. Whoever records proofs cannot guess it.
- Proofs are compared in constant time.

What it does not do: it hides nothing and protects no byte after the handshake. Someone who can
alter packets between two nodes can wait for the handshake and take the connection over; only TLS
prevents that.
"""

import hmac
import secrets
from enum import Enum
from struct import Struct
from typing import Final

SECRET_SIZE: Final = 32
NONCE_SIZE: Final = 32
PROOF_SIZE: Final = 32

_LENGTH: Final = Struct(">I")


class Side(Enum):
    DIALER = b"tidelog rpc 1 dialer"
    LISTENER = b"tidelog rpc 1 listener"


class Secret:
    """Never printed: its text form is a placeholder, so that no log line or traceback shows it."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != SECRET_SIZE:
            raise ValueError(f"a secret has {SECRET_SIZE} bytes, and this one {len(key)}")
        self._key = key

    @classmethod
    def new(cls) -> "Secret":
        return cls(secrets.token_bytes(SECRET_SIZE))

    def reveal(self) -> bytes:
        """Return the bytes, for a file or a join token."""
        return self._key

    def prove(self, side: Side, dialed: bytes, answered: bytes) -> bytes:
        """Return what `side` sends to prove that it knows the secret.

        `dialed` is the HELLO of the end that opened the connection, `answered` that of the other.
        """
        parts = (side.value, dialed, answered)
        covered = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
        return hmac.digest(self._key, covered, "sha256")

    def accepts(self, proof: bytes, side: Side, dialed: bytes, answered: bytes) -> bool:
        """Whether `side` proved that it knows the secret."""
        return hmac.compare_digest(proof, self.prove(side, dialed, answered))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._key, other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return "Secret(...)"


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_SIZE)
