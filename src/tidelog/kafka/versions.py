"""ApiVersions: the table of APIs, as clients ask for it before anything else."""

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.codec import API_VERSIONS, Answers
from tidelog.kafka.dispatch import Api, Context, Handler, Table

NO_THROTTLE: Final = timedelta(0)
# What a client may call itself (KIP-511).
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


def api_versions(table: Table) -> Handler:
    """Return the handler that announces this table."""

    async def handle(context: Context, request: Any) -> Any:
        answers = Answers.to(request)
        error = ErrorCode.none
        if request.__version__ >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            error = ErrorCode.invalid_request
        state = context.node.state
        return _answer(
            answers,
            error,
            table if error is ErrorCode.none else (),
            supported_features=tuple(
                answers("SupportedFeatureKey", name=name, min_version=1, max_version=level)
                for name, level in sorted(state.features.items())
                if level > 0 and answers.has("SupportedFeatureKey", "name")
            ),
            finalized_features_epoch=state.version,
            finalized_features=tuple(
                answers(
                    "FinalizedFeatureKey", name=name, min_version_level=1, max_version_level=level
                )
                for name, level in sorted(state.features.items())
                if level > 0 and answers.has("FinalizedFeatureKey", "name")
            ),
        )

    return handle


def unsupported_version(api: Api) -> Any:
    """Answer a version of ApiVersions that is not served, in the one version everybody knows."""
    return _answer(Answers.of(API_VERSIONS, 0), ErrorCode.unsupported_version, (api,))


def _answer(answers: Answers, error: ErrorCode, apis: Iterable[Api], **features: object) -> Any:
    return answers(
        "ApiVersionsResponse",
        error_code=error,
        throttle_time=NO_THROTTLE,
        api_keys=tuple(
            answers(
                "ApiVersion",
                api_key=api.key,
                min_version=api.min_version,
                max_version=api.max_version,
            )
            for api in apis
        ),
        **features,
    )
