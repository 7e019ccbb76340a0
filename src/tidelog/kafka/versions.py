"""ApiVersions: the table of APIs, as clients ask for it before anything else."""

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.codec import API_VERSIONS, Answers
from tidelog.kafka.dispatch import Api, Context, Handler, Table

NO_THROTTLE: Final = timedelta(0)
# Kafka's features that clients look for: level, and the API that comes with it.
_FEATURES: Final = {"group.version": (1, 68)}
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
        # The cluster's own features are its nodes' affair and mean nothing to clients.
        features = [
            (name, level)
            for name, (level, api_key) in _FEATURES.items()
            if table.get(api_key) is not None and answers.has("SupportedFeatureKey", "name")
        ]
        return _answer(
            answers,
            error,
            table.announced if error is ErrorCode.none else (),
            supported_features=tuple(
                answers("SupportedFeatureKey", name=name, min_version=level, max_version=level)
                for name, level in features
            ),
            finalized_features_epoch=context.node.state.version,
            finalized_features=tuple(
                answers(
                    "FinalizedFeatureKey",
                    name=name,
                    min_version_level=level,
                    max_version_level=level,
                )
                for name, level in features
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
