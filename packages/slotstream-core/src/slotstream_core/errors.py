"""Everything this package raises on purpose.

    SlotstreamError
    +-- CheckpointError            the directory cannot be used as a model
    |   +-- CheckpointMissing      no such directory, file, or shard named by the index
    |   +-- CheckpointDamaged      truncated file, wrong shape or dtype, NaN scales, inconsistent index
    |   +-- UnsupportedModel       an architecture, tensor or setting this version does not know
    |   +-- CorrectionUnusable     the lookahead's correction file is missing or not as documented
    |   +-- RecordsUnusable        repacked experts are stale, damaged, or those of another checkpoint
    |   +-- MirrorMismatch         a mirror directory does not hold the same checkpoint
    |   +-- DirectoryClaimed       another process writes to the directory
    +-- TokenizerError             tokenizer or chat template missing, broken, or at odds with the vocabulary
    |   +-- TemplateError          the chat template refused the conversation
    +-- BackendError               MLX cannot run here as installed
    +-- DeviceHung                 a device does not answer any more; ends the engine
    +-- NativeError                the native library was given something it does not take, or cannot run
    +-- SettingError               an environment variable has a value that cannot be used
    +-- ExpertReadError            expert bytes could not be read from disk (fails one request)
    +-- PoolError                  a request the slot pool cannot hold
    +-- StateError                 a sequence state used where it does not fit
    +-- PlanError                  a memory plan that cannot be loaded here
    +-- EngineBusy                 the engine is already generating
    +-- RequestError               the request itself is wrong
    |   +-- EmptyPrompt
    |   +-- ContextLengthExceeded  prompt and reply do not fit in the window
    |   +-- InvalidSampling
    +-- PersistenceError           conversations cannot be kept on disk
    |   +-- DirectoryInUse         another process uses the directory
    |   +-- InaccessibleFile       a file exists but the system refuses to read it
    |   +-- StateFileDamaged       a file has not the bytes that were written
    +-- GenerationCancelled        the caller asked to stop
    +-- DeadlineExceeded           the first token did not come in time
    +-- MemoryUnavailable          the machine has too little memory to go on with a prompt or reply now

A message says what happened, the numbers, and what to do.
"""

from pathlib import Path


class SlotstreamError(Exception):
    """Base of every error raised on purpose; its text is fit to show to a person."""


class CheckpointError(SlotstreamError):
    """The directory cannot be used as a model."""


class CheckpointMissing(CheckpointError):
    """A directory, file or shard that should exist does not, or cannot be opened."""


class CheckpointDamaged(CheckpointError):
    """A file is truncated or its contents contradict the index, the configuration or themselves."""


class UnsupportedModel(CheckpointError):
    """An architecture, tensor or setting that this version does not know."""


class CorrectionUnusable(CheckpointError):
    """The file that corrects the lookahead's forecasts is missing, damaged, or made for another model."""


class RecordsUnusable(CheckpointError):
    """Repacked experts are damaged, incomplete, or were made from another checkpoint."""


class MirrorMismatch(CheckpointError):
    """A directory given as a mirror does not hold the same checkpoint."""


class DirectoryClaimed(CheckpointError):
    """Another process writes to the directory, or has just ended doing so."""


class TokenizerError(SlotstreamError):
    """The tokenizer is missing, broken, or disagrees with the model's vocabulary."""


class TemplateError(TokenizerError):
    """The chat template cannot be compiled or refused the conversation."""


class BackendError(SlotstreamError):
    """MLX cannot run here as installed."""


class DeviceHung(SlotstreamError):
    """A device has not answered for so long that it is given up; nothing can be computed in this process any more.

    What it was given is never freed, since it may still write there.
    """


class NativeError(SlotstreamError):
    """The native library cannot be used, or was called with matrices or activations that it does not take."""


class SettingError(SlotstreamError):
    """An environment variable has a value that cannot be used."""


class ExpertReadError(SlotstreamError):
    """Expert bytes could not be read completely; only the request that needed them fails."""


class PoolError(SlotstreamError):
    """More experts were asked for at once than the slot pool can hold."""


class StateError(SlotstreamError):
    """A sequence state was used with the wrong model, or trimmed to a position it cannot return to."""


class PlanError(SlotstreamError):
    """A memory plan was made for another model or for an invented machine."""


class EngineBusy(SlotstreamError):
    """The engine makes one reply at a time and is making one now."""


class RequestError(SlotstreamError):
    """The request itself is wrong."""


class EmptyPrompt(RequestError):
    """The prompt holds no tokens."""


class ContextLengthExceeded(RequestError):
    """The prompt does not fit in the context window.

    Attributes:
        prompt_tokens: Length of the prompt in tokens.
        window_tokens: The context window in tokens.
        at_least: Whether the prompt was not tokenized, as it has `prompt_tokens` or more.
    """

    def __init__(self, prompt_tokens: int, window_tokens: int, *, at_least: bool = False) -> None:
        super().__init__(
            f"the prompt has {'at least ' if at_least else ''}{prompt_tokens:,} tokens and the context window "
            f"{window_tokens:,}; one token of the window must stay free for the reply. Shorten the prompt or raise "
            "--max-context"
        )
        self.prompt_tokens = prompt_tokens
        self.window_tokens = window_tokens
        self.at_least = at_least


class InvalidSampling(RequestError):
    """A sampling option has a value that cannot be used."""


class PersistenceError(SlotstreamError):
    """Conversations cannot be kept on disk."""


class DirectoryInUse(PersistenceError):
    """Another process keeps its conversations in the same directory."""


class InaccessibleFile(PersistenceError):
    """The system refuses to read, remove or lock a file that is there; it is left alone.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be used ({reason}); it was left as it is. Correct its permissions, or remove it"
        )
        self.path = path


class StateFileDamaged(PersistenceError):
    """A kept state's file is cut off, or holds other bytes than were written.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}; it will be removed")
        self.path = path


class GenerationCancelled(SlotstreamError):
    """The caller asked to stop; what was generated so far stands."""


class DeadlineExceeded(SlotstreamError):
    """A prompt was not read in the time that its request allows; nothing was generated.

    Attributes:
        limit_s: The time that was allowed, from the request to its first token.
        elapsed_s: The time that had passed.
    """

    def __init__(self, *, limit_s: float, elapsed_s: float) -> None:
        super().__init__(
            f"the prompt is not read after {elapsed_s:.1f} s and the request allows {limit_s:g} s; send a shorter "
            "prompt or allow more time"
        )
        self.limit_s = limit_s
        self.elapsed_s = elapsed_s


class MemoryUnavailable(SlotstreamError):
    """Other programs hold memory that the plan counted on; the request can be sent again when they need less.

    Attributes:
        required_bytes: What comes next takes beyond what the process holds, and the reserve for the system.
        available_bytes: What the machine, or its NVIDIA device, has available.
    """

    def __init__(self, *, required_bytes: int, available_bytes: int) -> None:
        super().__init__(
            f"going on needs {required_bytes / 1e6:,.0f} MB of memory and {available_bytes / 1e6:,.0f} MB are "
            "available now; close other programs and try again, or load the model under a smaller plan"
        )
        self.required_bytes = required_bytes
        self.available_bytes = available_bytes
