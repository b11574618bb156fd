"""The weights of one model, for apps: are they there, how much is missing, get them."""

import dataclasses
import os
import pathlib
from typing import Literal

from slotpack.cancellation import Cancellation
from slotpack.catalog import CatalogModel, default_directory
from slotpack.errors import SlotpackError
from slotpack.progress import ProgressSink
from slotpack.pulling import PullOptions, PullReport, pull, verify_directory
from slotpack.resume import FreeSpace, free_bytes

StoreState = Literal["ready", "missing", "incomplete", "corrupt"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreStatus:
    """What a model directory holds.

    Attributes:
        state: `ready` when every required file has its SHA-256 and no file is wrong; `missing` when none is there;
            `incomplete` when some are; `corrupt` when a file has other bytes.
        needed_bytes: Reconstructed bytes of the files that are missing or damaged; an absent optional file is not
            counted.
        free_bytes: Free bytes where the model goes.
        damaged: The files with other bytes.
    """

    state: StoreState
    needed_bytes: int
    free_bytes: int
    damaged: tuple[str, ...] = ()


class WeightStore:
    """One model in one directory.

    Args:
        model: The model and its pins.
        directory: Where it is; the catalog's place below ~/.slotstream/models when None.
        free_space: The file system's free bytes.
    """

    def __init__(
        self,
        model: CatalogModel,
        directory: str | os.PathLike[str] | None = None,
        *,
        free_space: FreeSpace = free_bytes,
    ) -> None:
        self.model = model
        self.directory = pathlib.Path(directory) if directory is not None else default_directory(model)
        self._free_space = free_space

    def status(self, *, cancel: Cancellation | None = None, progress: ProgressSink | None = None) -> StoreStatus:
        """Hash what is there.  A file of the right size is hashed too: size cannot see changed bytes.

        Raises:
            PullCancelled: On cancellation.
        """
        found = verify_directory(self.model, self.directory, cancel=cancel, progress=progress)
        size = {entry.path: entry.size_bytes for entry in self.model.files}
        needed = sum(size[path] for path in (*found.missing, *found.damaged))
        required = [entry for entry in self.model.files if not entry.optional]
        state: StoreState = "ready"
        if found.damaged:
            state = "corrupt"
        elif found.missing:
            state = "missing" if len(found.missing) == len(required) else "incomplete"
        if state == "missing" and (
            len(found.absent_optional) + len(found.missing) < len(self.model.files) or self._has_progress()
        ):
            state = "incomplete"
        return StoreStatus(state=state, needed_bytes=needed, free_bytes=self._free(), damaged=found.damaged)

    def download(
        self,
        *,
        progress: ProgressSink | None = None,
        cancel: Cancellation | None = None,
        options: PullOptions | None = None,
    ) -> PullReport:
        """Pull the model here; see `pull`.  It returns only after verification, so no second check is needed.

        Raises:
            PullCancelled: When stopped; verified progress is kept.
            PullError: When the model cannot be completed.
        """
        return pull(self.model, self.directory, options=options, progress=progress, cancel=cancel)

    def _has_progress(self) -> bool:
        return self.directory.is_dir() and any(
            path.name.endswith((".part", ".partmap")) for path in self.directory.iterdir()
        )

    def _free(self) -> int:
        place = self.directory.absolute()
        while not place.exists():
            place = place.parent
        try:
            return self._free_space(place)
        except OSError as error:
            raise SlotpackError(f"the free space of {place} cannot be read: {error.strerror}") from error
