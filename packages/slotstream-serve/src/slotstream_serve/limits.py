"""What a request may look like before anything reads it: its sender, its head, its body."""

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

from starlette.types import Receive

from slotstream_core.text.strict_json import UnusableNumber, parse_strict
from slotstream_core.text.surrogates import REPLACEMENT, SURROGATE, SURROGATE_ESCAPE, lone_escapes, with_texts
from slotstream_serve.dialects.base import JsonObject
from slotstream_serve.errors import Failure, Refused, ServeError, invalid
from slotstream_serve.settings import Limits, ServeConfig

LOOPBACK_ORIGIN_HOSTS = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1"})
LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
"""Names that no public name server answers for, so no web page can be served from them."""
VALUE_MARKS = (b",", b":", b"[", b"{")
"""Outside strings, each stands before one value or name, or opens an empty list or object."""
COUNTED_AT_ONCE = 64 * 2**10
"""Bytes that are split into strings and the rest between them, which takes many times their size."""
MOST_SURROGATES = 2**16
"""Replacing one takes as long as parsing a hundred characters, so a body of nothing else would take seconds."""
JSON_NESTED = re.compile(r"\s*[{\[]")
"""How a text begins that is an object of JSON once more, as a call's arguments are, or an array, which they may not be:
that is known once it was parsed."""


class ClientGone(ServeError):
    """The client closed its connection; there is nobody to answer."""


def check_host(host: str | None, config: ServeConfig) -> None:
    """Refuse a `Host` header that a web page of another site could have caused (DNS rebinding).

    A rebinding page must use a public name of its own, so addresses, names of this machine and names outside the
    public tree pass.  A server with a key needs no such check: the page does not have the key.

    Raises:
        Refused: The name is none of those.
    """
    if host is None or config.api_key is not None:
        return
    name = (urlsplit(f"//{host}").hostname or "").removesuffix(".") if _is_authority(host) else ""
    own = {other.lower() for other in (config.host, *config.allowed_hosts)}
    if name == "localhost" or name.endswith(LOCAL_SUFFIXES) or name in own:
        return
    if _is_address(name):
        return
    raise Refused(
        Failure(
            code="forbidden",
            message=f"host {host!r} is not allowed; use localhost or an IP address, or start with --allow-host NAME",
        )
    )


def check_origin(origin: str | None, host: str | None) -> str | None:
    """Return the origin to allow, or None when the request is no browser's cross-origin request.

    Raises:
        Refused: A browser sent it for a page that is not from this machine.
    """
    if origin is None:
        return None
    try:
        parts = urlsplit(origin)
        loopback = parts.scheme in ("http", "https") and parts.hostname in LOOPBACK_ORIGIN_HOSTS
    except ValueError:
        loopback = False
        parts = urlsplit("")
    if loopback or (host is not None and parts.scheme in ("http", "https") and parts.netloc == host):
        return origin
    raise Refused(Failure(code="forbidden", message="browser origin is not allowed"))


def check_key(headers: Mapping[str, str], key: str | None) -> None:
    """Refuse a request without the server's key.  The comparison takes the same time for every wrong key.

    Raises:
        Refused: The server has a key and the request another one, or none.
    """
    if key is None:
        return
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode("utf-8")):
        raise Refused(
            Failure(
                code="unauthorized",
                message="this server needs its API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            )
        )


def check_head_size(size_bytes: int, limits: Limits) -> None:
    """Refuse headers that are too large.

    Raises:
        Refused: Request line and headers are larger than the limit.
    """
    if size_bytes > limits.header_bytes:
        raise Refused(headers_too_large(limits))


def headers_too_large(limits: Limits) -> Failure:
    """Return the refusal of a request head."""
    return Failure(code="headers_too_large", message=f"request headers exceed {limits.header_bytes // 1024} KiB")


async def read_body(receive: Receive, content_length: str | None, limits: Limits) -> bytes:
    """Read a request's body.

    A body that is too large is read on and thrown away for a while, so that the client gets to read the refusal
    instead of losing its connection.

    Raises:
        Refused: It is too large, or comes too slowly.
        ClientGone: The client left.
    """
    pieces: list[bytes] = []
    size = 0
    too_large = content_length is not None and content_length.isdecimal() and int(content_length) > limits.body_bytes
    started = time.monotonic()
    ends = started + (limits.drain_s if too_large else limits.body_s)
    while True:
        try:
            async with asyncio.timeout(min(limits.receive_s, max(0.0, ends - time.monotonic()))):
                message = await receive()
        except TimeoutError:
            if too_large:
                _refuse_large(limits)
            raise Refused(
                Failure(code="invalid_request", message="the request body came too slowly; send it again", status=408)
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection while sending its body")
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limits.body_bytes and not too_large:
            too_large = True
            pieces.clear()
            ends = min(ends, time.monotonic() + limits.drain_s)
        if not too_large:
            pieces.append(piece)
        if not message.get("more_body", False):
            break
        if size > limits.drain_bytes:
            _refuse_large(limits)
    if too_large:
        _refuse_large(limits)
    return b"".join(pieces)


def parse_json_object(body: bytes, limits: Limits) -> JsonObject:
    """Return the JSON object of a body.  Lone surrogates, which no tokenizer takes, become U+FFFD.

    What is bounded counts in texts of JSON, too: dialects parse those that are arguments of calls.  A text that is none
    of them and has as much would not fit into a window of any model.

    Raises:
        Refused: It has too many values, which take up to forty times their text, or too many lone surrogates, is not
            JSON, not an object, or has a number that no float holds.
    """
    if has_more_values(body, limits.body_values):
        raise _too_many_values(limits)
    try:
        text = body.decode("utf-8-sig")
        value = parse_strict(text)
        if SURROGATE_ESCAPE.search(text):
            value = with_texts(value, _Surrogates(MOST_SURROGATES).replaced)
        if _has_more_marks(body, limits.body_values):
            inside = " ".join(_json_texts(value)).encode("utf-8", "surrogatepass")
            if has_more_values(inside, limits.body_values):
                raise _too_many_values(limits)
    except UnusableNumber as error:
        raise invalid(f"invalid JSON body: {error}") from None
    except (ValueError, RecursionError):
        raise invalid("invalid JSON body") from None
    if not isinstance(value, dict):
        raise invalid("invalid JSON body: it must be an object")
    found: JsonObject = value
    return found


def has_more_values(body: bytes, most: int) -> bool:
    """Return whether a body, if it is JSON, has more than `most` values and names, without making any of them.

    Text costs little: marks inside strings count only until the strings are looked for.
    """
    if not _has_more_marks(body, most):
        return False
    text = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left of a string has no quote inside
    count, inside = 0, 0
    for start in range(0, len(text), COUNTED_AT_ONCE):
        pieces = text[start : start + COUNTED_AT_ONCE].split(b'"')
        count += sum(map(b" ".join(pieces[inside::2]).count, VALUE_MARKS))
        if count > most:
            return True
        inside = (inside + len(pieces) - 1) % 2
    return False


def _has_more_marks(body: bytes, most: int) -> bool:
    """Return whether there may be more values and names, inside strings or outside."""
    return len(body) > most and sum(map(body.count, VALUE_MARKS)) > most


def _json_texts(value: Any) -> list[str]:
    """Return the texts in a parsed JSON value that begin as objects and arrays do."""
    found: list[str] = []

    def look(text: str) -> str:
        if JSON_NESTED.match(text):
            found.append(text)
        return text

    with_texts(value, look)
    return found


def _too_many_values(limits: Limits) -> Refused:
    message = f"request body has more than {limits.body_values:,} values and names; send less input"
    return Refused(Failure(code="payload_too_large", message=message))


class _Surrogates:
    """Puts U+FFFD in the place of lone surrogates.

    Args:
        most: How many it takes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def replaced(self, text: str) -> str:
        """Return a text without any; those that it names as JSON does count, and stay.

        Raises:
            Refused: There are too many in all texts so far.
        """
        text, count = SURROGATE.subn(REPLACEMENT, text, count=self._left + 1)
        inside = lone_escapes(text) if SURROGATE_ESCAPE.search(text) else 0
        self._left -= count + inside
        if self._left < 0:
            raise invalid(f"request body has more than {self._most:,} lone surrogates; send text as UTF-8")
        return text


def _refuse_large(limits: Limits) -> NoReturn:
    raise Refused(
        Failure(
            code="payload_too_large",
            message=f"request body exceeds {limits.body_bytes // 2**20} MiB; send less input",
        )
    )


def _is_authority(host: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?", host) is not None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
