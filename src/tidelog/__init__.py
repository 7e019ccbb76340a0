"""Tidelog, a streaming store: replicated logs and primary-key tables on one Raft implementation.

Each package below this one is a room with one concern, and imports only from the rooms beneath it;
README.md lists them, and the import contract in .importlinter holds them to it.
"""

__version__ = "0.1.0"
