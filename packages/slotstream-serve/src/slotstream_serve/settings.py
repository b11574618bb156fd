"""What a server is configured with."""

import ipaddress
from dataclasses import dataclass, field

from slotstream_serve.defaults import DEFAULT_PORT, MOST_IDLE_MINUTES
from slotstream_serve.dialects.base import ModelFacts
from slotstream_serve.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may take.  Byte counts and seconds.

    Attributes:
        header_bytes: Request line and headers together; more is answered 431.
        body_bytes: Request body; more is answered 413.
        body_values: Values and names in a body, which a parser makes objects of; more is answered 413.
        drain_bytes: How much of a body that is too large is read and thrown away, so that the answer arrives.
        drain_s: How long that may take.
        connections: Open connections; one more is answered 503.
        head_s: From the first byte of a request, or from connecting, to the end of its headers.
        receive_s: Longest pause between two pieces of a body.
        body_s: From the end of the headers to the end of the body.
        send_s: How long a client may leave data unread.
        idle_connection_s: How long a connection stays open between requests.
    """

    header_bytes: int = 64 * 2**10
    body_bytes: int = 32 * 2**20
    body_values: int = 500_000
    drain_bytes: int = 256 * 2**20
    drain_s: float = 10.0
    connections: int = 32
    head_s: float = 30.0
    receive_s: float = 30.0
    body_s: float = 120.0
    send_s: float = 120.0
    idle_connection_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """How to serve one model.

    Attributes:
        model: What clients are told about it.
        host: Address to listen on; anything but a loopback address needs `api_key`.
        port: Port to listen on; 0 lets the system choose.
        api_key: What clients must send as a bearer token or `x-api-key`, or None.
        allowed_hosts: More names that a `Host` header may carry.
        max_prefill_wait_s: Longest time from a complete request to its first token; 0 for no limit.
        idle_exit_s: Stop after this long without requests and clients, or None.
        keepalive_s: Longest silence in a stream.
        limits: What one client may take.

    Raises:
        ConfigurationError: A value is out of its range, or other machines could use the server without a key.
    """

    model: ModelFacts
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_key: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    max_prefill_wait_s: float = 1800.0
    idle_exit_s: float | None = None
    keepalive_s: float = 10.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigurationError(f"--port is {self.port}; give 1 to 65535")
        if self.api_key is not None and (not self.api_key.isascii() or not self.api_key.strip()):
            raise ConfigurationError("the API key is empty or has characters that no header can carry")
        if self.api_key is None and not is_loopback(self.host):
            raise ConfigurationError(
                f"--host {self.host} can be reached from other machines, so it needs a key: "
                "give --api-key, or set SLOTSTREAM_API_KEY"
            )
        if not 0 <= self.max_prefill_wait_s < float("inf"):
            raise ConfigurationError("--max-prefill-wait must be a number of minutes, or 0 for no limit")
        if self.idle_exit_s is not None and not 0 < self.idle_exit_s <= MOST_IDLE_MINUTES * 60:
            raise ConfigurationError(f"--idle-exit must be 0 (never) to {MOST_IDLE_MINUTES} minutes")


def is_loopback(host: str) -> bool:
    """Return whether an address or name to listen on reaches this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
