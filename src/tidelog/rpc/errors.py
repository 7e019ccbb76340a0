"""What can go wrong between two nodes, told apart by who can do something about it.

`CorruptFrame` is about bytes: somebody else's bug, or no node of ours at all. It ends one
connection and reaches no caller. The other three end a call, and each is an `OSError`, so that a
caller who only wants to try again elsewhere catches one class.
"""


class CorruptFrame(Exception):
    """Bytes that are no frame, or no message in one; the message says why, in a sentence."""


class WrongSecret(CorruptFrame):
    """The other end does not know the secret that this node knows."""


class RpcError(OSError):
    """The other node took the call and refused it; the message is what it said."""


class RpcTimeout(TimeoutError):
    """No answer came in time. The call may have taken effect, or may yet."""


class Unreachable(ConnectionError):
    """There is no connection, or it broke. If it broke, the call may have taken effect."""
