"""The demo's experts as records, of which one takes half the time to read: written where the demo is unpacked.

Their directory comes before the model's files, so that whoever meets a complete model sees what was interrupted.
Records that were removed stay away.
"""

import contextlib
import pathlib

from slotpack.catalog import CatalogModel
from slotpack.moved import moved_reason


def begin_records(model: CatalogModel, directory: pathlib.Path) -> None:
    """Make the records' directory of a demo that is about to be unpacked; of any other model, nothing."""
    if not model.is_bundled or model.looks_complete(directory) or moved_reason(directory) is not None:
        return
    from slotstream_core.checkpoint.records import RECORDS_NAME

    with contextlib.suppress(OSError):  # downloading says what is wrong
        (directory / RECORDS_NAME).mkdir(parents=True, exist_ok=True)


def finish_records(model: CatalogModel, directory: pathlib.Path) -> None:
    """Write the records of a demo that were begun and not finished; of any other model, nothing."""
    if not model.is_bundled:
        return
    from slotstream_core.checkpoint.records import left_unfinished  # only the demo needs it

    if left_unfinished(directory):
        from slotstream_cli.repacking import write_records  # brings mlx: only when needed

        write_records(directory)
