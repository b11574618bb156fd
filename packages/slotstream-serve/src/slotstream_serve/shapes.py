"""Which body a failure gets on which path."""

from collections.abc import Callable, Mapping, Sequence

from slotstream_serve.dialects.base import AnswersInfo, CountsTokens, Dialect, JsonObject
from slotstream_serve.errors import Failure

ErrorBody = Callable[[Failure], JsonObject]


class ErrorShapes:
    """Finds a failure's body by the request's path; paths of no dialect get `{"error": message}`."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._bodies: dict[str, ErrorBody] = {}
        for dialect in dialects:
            paths = [*dialect.paths]
            if isinstance(dialect, CountsTokens):
                paths += dialect.count_paths
            if isinstance(dialect, AnswersInfo):
                paths += [route.path for route in dialect.info_routes]
            self._bodies.update(dict.fromkeys(paths, dialect.error_body))

    def body(self, path: str, failure: Failure) -> JsonObject:
        """Return the body of a failure on a path."""
        return self._bodies.get(path, plain_error)(failure)


def plain_error(failure: Failure) -> JsonObject:
    """Return the body of a failure on a path that belongs to no dialect."""
    return {"error": failure.message}


def failure_headers(failure: Failure) -> dict[str, str]:
    """Return the response headers a failure needs besides its content type."""
    headers: dict[str, str] = {}
    if failure.code == "server_busy":
        headers["retry-after"] = "1"
    if failure.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    if failure.code == "payload_too_large" or failure.http_status == 408:  # the rest of the body is not read
        headers["connection"] = "close"
    return headers


def canonical_path(target: str) -> str:
    """Return a request target's path: without scheme and authority, query, and trailing slash."""
    path = target.partition("?")[0]
    for scheme in ("http://", "https://"):
        if path.lower().startswith(scheme):
            _authority, _slash, rest = path[len(scheme) :].partition("/")
            path = f"/{rest}"
    return path.rstrip("/") or "/"


def lowercase_headers(raw: Sequence[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Return ASGI headers as text; a name that comes twice keeps its first value."""
    headers: dict[str, str] = {}
    for name, value in raw:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers
