"""Everything the server refuses or fails on, in neutral form; each dialect gives it its own shape.

    ServeError
    +-- Refused              the request is wrong or cannot be taken; has a code, an HTTP status and perhaps a field
    +-- ServerStopping       the server takes no new requests
    +-- ConfigurationError   the server cannot be started as asked

A `Failure` is the value form: what a generation ends with when it does not finish.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FailureCode = Literal[
    "invalid_request",
    "invalid_configuration",
    "context_length_exceeded",
    "prefill_wait_exceeded",
    "prefill_deadline_exceeded",
    "insufficient_memory",
    "client_cancelled",
    "inference_error",
    "tool_choice_unsatisfied",
    "model_not_found",
    "not_found",
    "not_implemented",
    "payload_too_large",
    "headers_too_large",
    "forbidden",
    "unauthorized",
    "server_busy",
    "server_stopping",
]

HTTP_STATUS: Mapping[FailureCode, int] = {
    "invalid_request": 400,
    "invalid_configuration": 400,
    "context_length_exceeded": 400,
    "prefill_wait_exceeded": 400,
    "prefill_deadline_exceeded": 503,
    "insufficient_memory": 503,
    "client_cancelled": 499,
    "inference_error": 500,
    "tool_choice_unsatisfied": 500,
    "model_not_found": 404,
    "not_found": 404,
    "not_implemented": 501,
    "payload_too_large": 413,
    "headers_too_large": 431,
    "forbidden": 403,
    "unauthorized": 401,
    "server_busy": 503,
    "server_stopping": 503,
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a request was refused or a generation did not finish.

    Attributes:
        code: The neutral code.
        message: One sentence with the numbers and what to do.
        details: Numbers for programs: `elapsed_seconds`, `limit_seconds`, `estimated_seconds`, `required_bytes`,
            `available_bytes`, `prompt_tokens`, `window_tokens`, as far as they apply; `prompt_tokens_at_least` is true
            where the prompt has so many tokens or more.
        param: Path of the field that is wrong, such as `messages.0.content`.
        dialect_code: A dialect's own finer code (such as `unsupported_field`), when it has one.
        status: HTTP status; the code's own when not given.
    """

    code: FailureCode
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    param: str | None = None
    dialect_code: str | None = None
    status: int | None = None

    @property
    def prompt_and_window(self) -> tuple[str, int] | None:
        """A prompt's length in words and its window in tokens, where the one is too long for the other."""
        prompt, window = self.details.get("prompt_tokens"), self.details.get("window_tokens")
        if self.code != "context_length_exceeded" or prompt is None or window is None:
            return None
        return f"{'at least ' if self.details.get('prompt_tokens_at_least') else ''}{prompt} tokens", window

    @property
    def http_status(self) -> int:
        """The status to answer with before a stream has begun."""
        return HTTP_STATUS[self.code] if self.status is None else self.status


class ServeError(Exception):
    """Base of every error this package raises on purpose."""


class Refused(ServeError):
    """A request that is refused before anything is generated.

    Attributes:
        failure: The refusal as a value.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class ServerStopping(ServeError):
    """The server is stopping and takes no new requests."""


class ConfigurationError(ServeError):
    """The server cannot be started as asked."""


def invalid(message: str, *, param: str | None = None, dialect_code: str | None = None) -> Refused:
    """Return the refusal of a request that is wrong, to be raised."""
    return Refused(Failure(code="invalid_request", message=message, param=param, dialect_code=dialect_code))
