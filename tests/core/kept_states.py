"""Invented states and the directories they are kept in."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slotstream_core.persistence.directory import NewHead, PersistentOptions, PrefixDirectory
from slotstream_core.state.rows import HostArray, RowForm, RowSegment, StateSnapshot

KB = 1000
FORMS = {"0/keys": RowForm(axis=1, tokens_per_row=1, step_rows=256)}
EMPTY: tuple[RowSegment, ...] = ()


def rows(start: int, end: int) -> RowSegment:
    values = np.arange(start * 2, end * 2, dtype=np.float32).reshape(2, end - start, 1).repeat(50, axis=2)
    return RowSegment(start=start, end=end, rows={"0/keys": HostArray(dtype="float32", values=values)}, forms=FORMS)


def state(length: int, before: Sequence[RowSegment] = EMPTY, *, fixed_bytes: int = 4000) -> StateSnapshot:
    start = before[-1].end if before else 0
    fixed = {"1/memory": HostArray(dtype="float32", values=np.full(fixed_bytes // 4, length, np.float32))}
    segments = (*before, rows(start, length))
    return StateSnapshot(length=length, model_key="m", fixed=fixed, segments=segments)


def named(number: int) -> str:
    return f"{number:040x}"


def head(
    number: int, snapshot: StateSnapshot, *beginnings: int, shared: bool = False, continued: bool = False
) -> NewHead:
    return NewHead(
        name=named(number),
        snapshot=snapshot,
        pass_tokens=256,
        shared=shared,
        continued=continued,
        beginnings=[named(each) for each in beginnings],
    )


def opened(directory: Path, **changes: int) -> PrefixDirectory:
    return PrefixDirectory(options(directory, minimum_tokens=1, **changes), identity="me", build="test 1")


def options(directory: Path, **changes: int) -> PersistentOptions:
    values = {"quota_bytes": 10**9, "minimum_tokens": 256, "free_bytes": 0, **changes}
    return PersistentOptions(directory=directory, **values)
