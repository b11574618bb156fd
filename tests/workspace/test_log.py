"""The log of experiments can be read from the newest entry on."""

import itertools
import pathlib
import re

LOG = pathlib.Path(__file__).resolve().parents[2] / "docs" / "log.md"


def test_entries_are_dated_newest_first_and_stand_apart() -> None:
    lines = LOG.read_text(encoding="utf-8").splitlines()
    headings = [number for number, line in enumerate(lines) if line.startswith("## ")]
    dates = [re.match(r"## (\d{4}-\d\d-\d\d): \S", lines[number]) for number in headings]
    assert len(headings) > 40
    assert [lines[number] for number, date in zip(headings, dates, strict=True) if date is None] == []
    assert [lines[number] for number in headings if lines[number - 1] or lines[number + 1]] == []
    pairs = itertools.pairwise(date[1] for date in dates if date is not None)
    assert [later for earlier, later in pairs if later > earlier] == []
