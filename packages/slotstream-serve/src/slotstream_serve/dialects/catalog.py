"""Every dialect this server speaks."""

from slotstream_serve.dialects.base import Dialect


def all_dialects() -> tuple[Dialect, ...]:
    """Return a fresh instance of each dialect."""
    return ()
