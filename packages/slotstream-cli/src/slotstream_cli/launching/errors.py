"""What `slotstream launch` and `slotstream stop` refuse.

LaunchError
├── AgentRefused        the agent, its arguments or its files cannot be used with this model
├── ServerRefused       the server on the port cannot be used, or none may be started
└── NotPlainJson        a JSON text that cannot be edited in place
"""


class LaunchError(Exception):
    """A launch ends here; the message says why, with the numbers, and what to do."""


class AgentRefused(LaunchError):
    """The agent cannot run as asked."""


class ServerRefused(LaunchError):
    """There is no server that the agent could use."""


class NotPlainJson(LaunchError):
    """A text is not JSON as its specification has it, or has no place for a value.

    Attributes:
        path: Where in the document; empty for the whole text.
    """

    def __init__(self, message: str, *, path: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.path = path
