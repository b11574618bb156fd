"""The running server: a socket, uvicorn with our connection limits, and a graceful end."""

import errno
import logging
import signal
import socket
from types import FrameType

import uvicorn

from slotstream_serve.app import build_app
from slotstream_serve.errors import ConfigurationError
from slotstream_serve.protocol import GuardedConfig
from slotstream_serve.quick_status import QuickStatus
from slotstream_serve.service import Service
from slotstream_serve.settings import ServeConfig

logger = logging.getLogger("slotstream.serve")

BACKLOG = 128
GRACEFUL_STOP_S = 5
PROGRESS_S = 10
"""So often a running generation's phase is logged."""
TICKS_PER_S = 10
"""uvicorn calls `on_tick` this often."""


def bind(config: ServeConfig) -> socket.socket:
    """Return a bound socket that does not listen yet, so that a busy port is known before a model is loaded.

    Raises:
        ConfigurationError: The port is in use, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only on sockets that name their protocol
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((config.host.strip("[]"), config.port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {config.port} is in use; `slotstream stop --port {config.port}` stops a Slotstream server "
                "there, or choose another port with --port"
            ) from error
        reason = error.strerror or str(error)
        raise ConfigurationError(f"cannot listen on {config.host} port {config.port}: {reason}") from error
    return bound


class SlotstreamServer(uvicorn.Server):
    """uvicorn, ending generations before it waits for connections, and stopping by itself when idle."""

    def __init__(self, service: Service) -> None:
        """Prepare; `run` or `serve` with a socket from `bind` starts."""
        super().__init__(
            GuardedConfig(
                build_app(service),
                limits=service.config.limits,
                shapes=service.shapes,
                quick=QuickStatus(service),
                backlog=BACKLOG,
                headers=[("server", "slotstream")],
                timeout_graceful_shutdown=GRACEFUL_STOP_S,
                lifespan="on",
            )
        )
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        if self.started:
            model = self._service.config.model
            for listener in sockets or []:
                host, port = listener.getsockname()[:2]
                where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                logger.info(
                    "slotstream listening on http://%s: %s, window %s tokens",
                    where,
                    model.name,
                    f"{model.window_tokens:,}",
                )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note which signal stops the server."""
        logger.info("stopping on %s", signal.Signals(sig).name)
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Decide once a second whether the server has been idle long enough; log long generations."""
        if counter and counter % (PROGRESS_S * TICKS_PER_S) == 0:
            self._service.log_progress()
        if counter % TICKS_PER_S == 0 and self._service.activity.decide_idle_exit():
            minutes = (self._service.config.idle_exit_s or 0) / 60
            logger.info("stopping after %g minutes without requests and clients", minutes)
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End generations with their dialect's failure, then let connections finish."""
        self._service.stop_generations()
        await super().shutdown(sockets)
