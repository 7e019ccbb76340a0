"""DescribeAcls, CreateAcls, DeleteAcls: there is no authorizer, and clients are told so.

Tools ask for ACLs as a matter of course and take SECURITY_DISABLED for an answer; a broker that
does not know these APIs stops them.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.admin import bounded
from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.versions import NO_THROTTLE

_DISABLED: Final = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "this cluster has no authorizer: every client may do everything",
}


async def handle_describe_acls(_context: Context, request: Any) -> Any:
    return Answers.to(request)(
        "DescribeAclsResponse", throttle_time=NO_THROTTLE, resources=(), **_DISABLED
    )


async def handle_create_acls(_context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    result = answers("AclCreationResult", **_DISABLED)
    return answers(
        "CreateAclsResponse",
        throttle_time=NO_THROTTLE,
        results=(result,) * len(bounded(request.creations)),
    )


async def handle_delete_acls(_context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    result = answers("DeleteAclsFilterResult", matching_acls=(), **_DISABLED)
    return answers(
        "DeleteAclsResponse",
        throttle_time=NO_THROTTLE,
        filter_results=(result,) * len(bounded(request.filters)),
    )
