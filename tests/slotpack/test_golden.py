"""The golden files: valid ones decode to their digest, broken ones meet their own error, in both coders."""

import hashlib
import json
import pathlib

import pytest

from slotpack import errors
from slotpack.codec import Coder
from slotpack.frames import MAX_RAW_BYTES
from slotpack.manifest import parse_manifest
from tests.slotpack import make_golden

GOLDEN = pathlib.Path(__file__).parent / "golden"
ALL: dict[str, dict[str, str]] = json.loads((GOLDEN / "index.json").read_text(encoding="utf-8"))
INDEX = {name: outcome for name, outcome in ALL.items() if not name.startswith("manifest-")}
MANIFESTS = {name: outcome for name, outcome in ALL.items() if name.startswith("manifest-")}


@pytest.mark.parametrize("name", sorted(INDEX))
def test_a_golden_frame_has_its_recorded_outcome(coder: Coder, name: str) -> None:
    frame = (GOLDEN / f"{name}.bin").read_bytes()
    expected = INDEX[name]
    if "error" not in expected:
        assert hashlib.sha256(coder.decode(frame)).hexdigest() == expected["raw_sha256"]
        return
    with pytest.raises(errors.FrameError) as caught:
        coder.decode(frame)
    assert type(caught.value).__name__ == expected["error"]


def test_every_frame_error_has_a_golden_file() -> None:
    named = {entry.get("error") for entry in INDEX.values()}
    assert {kind.__name__ for _code, kind, _message in errors.FRAME_ERRORS} <= named


def test_the_golden_files_are_what_the_generator_writes() -> None:
    frames = dict(make_golden.valid_frames())
    frames.update({name: frame for name, (frame, _error) in make_golden.broken_frames().items()})
    assert frames == {name: (GOLDEN / f"{name}.bin").read_bytes() for name in INDEX}


def test_an_object_above_the_limit_is_refused_unread(coder: Coder) -> None:
    with pytest.raises(errors.OversizeFrame):
        coder.decode(bytes(MAX_RAW_BYTES + 33))


@pytest.mark.parametrize("name", ["bytes-text", "words-bf16", "quantised-64", "quantised-32"])
def test_every_truncation_of_a_frame_is_refused(name: str) -> None:
    import slotpack

    frame = (GOLDEN / f"{name}.bin").read_bytes()
    for length in range(0, len(frame), 7):
        with pytest.raises(errors.FrameError):
            slotpack.decode(frame[:length])


@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_a_golden_manifest_has_its_recorded_outcome(name: str) -> None:
    data = (GOLDEN / f"{name}.json").read_bytes()
    assert data == make_golden.manifests()[name][0]
    error = MANIFESTS[name].get("error")
    if error is None:
        assert parse_manifest(data).to_bytes() == data
        return
    with pytest.raises(errors.ManifestError) as caught:
        parse_manifest(data)
    assert type(caught.value).__name__ == error
