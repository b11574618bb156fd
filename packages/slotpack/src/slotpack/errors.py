"""Everything this package raises on purpose.

    SlotpackError
    +-- EncodeError                 bytes that the requested kind cannot hold
    +-- FrameError                  a frame that breaks the format; nothing of it is used
    |   +-- BadMagic                does not start with SLTPK001
    |   +-- TruncatedFrame          ends before its own lengths say
    |   +-- TrailingBytes           bytes left over after the frame, or inside a stream
    |   +-- OversizeFrame           above the 40 MiB limits
    |   +-- BadHeader               a header field out of range or at odds with another
    |   +-- BadVarint               longer than needed, or above 32 bits
    |   +-- BadTable                symbol count, symbol or frequency out of range
    |   +-- FrequencySum            frequencies that do not sum to 4,096 or 65,536
    |   +-- StreamState             a coder state outside its interval, or not at the bound at the end
    |   +-- BadContext              quantisation context out of range, repeated, or missing
    +-- ManifestError               a manifest that breaks the format; refused before any network use
    |   +-- ManifestTooLarge
    |   +-- ManifestDigest          not the pinned bytes
    |   +-- OverlappingRanges
    |   +-- MissingRanges           a file not covered completely
    |   +-- MixedOptional           one object holds required and optional files
    |   +-- PinMismatch             files differ from the pinned model
    +-- PackError                   a model directory that cannot be packed, or a package that cannot be unpacked
    +-- PublishError                an upload that cannot be made or finished
    |   +-- ConflictingObject       the repository holds other bytes at an immutable path
    +-- UnknownModel                no such name in the catalog
    +-- UnusableRoot                no directory can be where models and state should live
    +-- PullError                   a download that did not end with a verified model
        +-- PullCancelled           the caller asked to stop; verified progress is kept
        +-- DirectoryBusy           another pull holds the directory
        +-- NotEnoughSpace          disk admission refused, or the disk filled up
        +-- UnsafeFile              a symbolic link, hard link or special file where a part file belongs
        +-- IntegrityError          bytes that do not match their digest
        +-- TransferError           the network or the server failed
            +-- ObjectUnavailable   a 4xx answer: retrying cannot help

A message says what happened, the numbers, and what to do.
"""


class SlotpackError(Exception):
    """Base of every error raised on purpose; its text is fit to show to a person."""


class EncodeError(SlotpackError):
    """The bytes do not have the shape that the requested kind needs."""


class FrameError(SlotpackError):
    """A frame breaks the format."""


class BadMagic(FrameError):
    """The frame does not start with `SLTPK001`."""


class TruncatedFrame(FrameError):
    """The frame ends before its own lengths say."""


class TrailingBytes(FrameError):
    """Bytes are left over after the frame or inside one of its streams."""


class OversizeFrame(FrameError):
    """The frame or its decoded length is above the limit."""


class BadHeader(FrameError):
    """A header field is out of range or contradicts another."""


class BadVarint(FrameError):
    """A varint is longer than its value needs, or above 32 bits."""


class BadTable(FrameError):
    """A section table has a count, symbol or frequency out of range."""


class FrequencySum(FrameError):
    """A table's frequencies do not sum to the coder's total."""


class StreamState(FrameError):
    """A coder state lies outside its interval, or did not return to the bound."""


class BadContext(FrameError):
    """A quantisation context is out of range, given twice, or missing."""


FRAME_ERRORS: tuple[tuple[int, type[FrameError], str], ...] = (
    (1, BadMagic, "this is not a Slotpack frame: it does not start with SLTPK001"),
    (2, TruncatedFrame, "the frame ends early; fetch the object again"),
    (3, TrailingBytes, "the frame has bytes left over; fetch the object again"),
    (4, OversizeFrame, "the frame is above the limit of 41,943,040 decoded bytes"),
    (5, BadHeader, "the frame's header fields are out of range or contradict each other"),
    (6, BadVarint, "the frame holds a varint that is not canonical or exceeds 32 bits"),
    (7, BadTable, "a section table holds a count, symbol or frequency out of range"),
    (8, FrequencySum, "the frequencies of a table do not sum to the coder's total"),
    (9, StreamState, "a coder state is outside its interval or not at the bound when the stream ends"),
    (10, BadContext, "a quantisation context is out of range, repeated or missing"),
)
"""Refusal codes of the C coder (csrc/frame.h), their exceptions and messages."""


def frame_error(code: int) -> FrameError:
    """Return the exception for one of the C coder's refusal codes."""
    for known, kind, message in FRAME_ERRORS:
        if known == code:
            return kind(message)
    return FrameError(f"the frame was refused with the unknown code {code}")


def frame_error_of(kind: type[FrameError]) -> FrameError:
    """Return `kind` with its standard message."""
    for _code, known, message in FRAME_ERRORS:
        if known is kind:
            return kind(message)
    return kind("the frame was refused")


class ManifestError(SlotpackError):
    """A manifest breaks the format or contradicts itself."""


class ManifestTooLarge(ManifestError):
    """The manifest is above 16 MiB."""


class ManifestDigest(ManifestError):
    """The manifest's bytes do not have the pinned SHA-256."""


class OverlappingRanges(ManifestError):
    """Two objects claim the same bytes of a file."""


class MissingRanges(ManifestError):
    """No object holds some bytes of a file."""


class MixedOptional(ManifestError):
    """One object holds bytes of required and optional files."""


class PinMismatch(ManifestError):
    """The manifest's files differ from the pinned model."""


class PackError(SlotpackError):
    """A directory cannot be packed, or a package cannot be read."""


class PublishError(SlotpackError):
    """An upload cannot be made or finished."""


class ConflictingObject(PublishError):
    """The repository already holds other bytes at an immutable path."""


class UnknownModel(SlotpackError):
    """The catalog has no model of that name."""


class UnusableRoot(SlotpackError):
    """No directory can be where models and state should live."""


class PullError(SlotpackError):
    """A download did not end with a verified model."""


class PullCancelled(PullError):
    """The caller asked to stop; verified progress is kept."""


class DirectoryBusy(PullError):
    """Another process is writing to the directory."""


class NotEnoughSpace(PullError):
    """The disk cannot hold the model.

    Attributes:
        needed_bytes: What the pull still has to allocate, margin included.
        free_bytes: What the file system offers.
    """

    def __init__(self, message: str, *, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class UnsafeFile(PullError):
    """A link or a special file stands where a part file belongs."""


class IntegrityError(PullError):
    """Bytes do not match their digest."""


class TransferError(PullError):
    """The network or the server failed after every retry."""


class ObjectUnavailable(TransferError):
    """The server refused with a status that retrying cannot change.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
