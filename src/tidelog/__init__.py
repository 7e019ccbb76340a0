"""Tidelog, a streaming store: replicated logs for any Kafka client, on Raft.

Each package below this one is a room with one concern, and imports only from the rooms beneath it;
README.md lists them, and the import contract in .importlinter holds them to it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.server.local import local

__version__ = "0.1.0"
__all__ = ["__version__", "local"]


def __getattr__(name: str) -> Any:
    """Import what runs a broker only when somebody wants one."""
    if name == "local":
        from tidelog.server.local import local

        return local
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
