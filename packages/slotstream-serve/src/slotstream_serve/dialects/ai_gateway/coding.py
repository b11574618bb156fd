"""Error codes of the gateway protocol."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from slotstream_serve.dialects.base import JsonObject
from slotstream_serve.errors import Failure, Refused

ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "forbidden",
    404: "not_found",
    429: "rate_limit_exceeded",
}
"""What clients read to choose their kind of error; every other status is a wrong request or a server error."""


@contextmanager
def coded(code: str) -> Iterator[None]:
    """Give refusals raised inside a code, unless they have one already.

    Raises:
        Refused: With the code.
    """
    try:
        yield
    except Refused as refusal:
        failure = refusal.failure
        if failure.code != "invalid_request" or failure.dialect_code is not None:
            raise
        raise Refused(replace(failure, dialect_code=code)) from refusal


def error_value(failure: Failure) -> JsonObject:
    """Return the gateway's error value: message, type and code."""
    status = failure.http_status
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "internal_server_error")
    if failure.code == "model_not_found":
        kind = "model_not_found"
    error: JsonObject = {"code": error_code(failure), "message": failure.message, "type": kind}
    if failure.param is not None:
        error["param"] = failure.param
    if failure.details:
        error["details"] = dict(failure.details)
    return error


def error_code(failure: Failure) -> str:
    """Return the code of a failure: the dialect's own, the reason the engine gave, or the neutral one."""
    reason = failure.details.get("reason")
    if failure.dialect_code is None and reason in ("template_error", "empty_prompt"):
        return str(reason)
    return failure.dialect_code or failure.code
