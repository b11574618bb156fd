"""Event loops whose clocks tests move, so that no limit of time passes, or fails to pass, by chance."""

import asyncio
import time

SHIFTED = "tests.serve.clocks:ShiftedLoop"
"""The name by which a server finds `ShiftedLoop`."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still until the test moves it."""

    now_s = 100.0

    def time(self) -> float:
        """Return the seconds that the test has let pass."""
        return self.now_s

    async def step(self, seconds: float) -> None:
        """Let time pass, and what is due then happen."""
        self.now_s += seconds
        for _ in range(3):  # what was called from outside, timers that are over, what they call
            await asyncio.sleep(0)


class ShiftedLoop(asyncio.SelectorEventLoop):
    """An event loop in another thread, whose clock the test moves forward."""

    shift_s = 0.0

    def time(self) -> float:
        """Return seconds since some moment, with what the test has added."""
        return time.monotonic() + self.shift_s

    def pass_time(self, seconds: float) -> None:
        """Let what is due within these seconds happen soon.  Any thread may call it."""
        self.call_soon_threadsafe(self._shift, seconds)

    def _shift(self, seconds: float) -> None:
        self.shift_s += seconds
