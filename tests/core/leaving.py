"""Callers who leave in the middle."""

from __future__ import annotations

from slotstream_core.generation.control import CancelToken


class CancelledAtThirdCheck(CancelToken):
    """Leaves when it is looked at for the third time."""

    checks = 0

    def check(self) -> None:
        """See `CancelToken.check`."""
        self.checks += 1
        if self.checks == 3:
            self.cancel()
        super().check()
