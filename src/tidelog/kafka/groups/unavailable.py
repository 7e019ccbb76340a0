"""Why a node cannot answer for a group now."""

from kio.schema.errors import ErrorCode


class Unavailable(Exception):
    """Somebody else coordinates the group, or nobody does yet; clients know the code."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code
