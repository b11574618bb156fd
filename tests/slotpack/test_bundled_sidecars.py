"""Small optional files that travel in a bundled package, beside its objects."""

import pathlib

import pytest

from slotpack.catalog import bundled_sidecars, default_directory, find_model
from slotpack.pulling import pull
from tests.slotpack.models import Packaged


@pytest.fixture
def bundled(packaged: Packaged, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    monkeypatch.setattr("slotpack.catalog.find_bundle", lambda: packaged.package)
    monkeypatch.setattr("slotpack.catalog.DEMO_MARGIN_BYTES", 0)
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path / "root"))
    return packaged


def test_a_package_without_them_has_none_and_keeps_its_place(bundled: Packaged) -> None:
    assert bundled_sidecars(bundled.package) == ()
    assert find_model("demo").sidecars == ()


def test_they_are_unpacked_with_the_model_and_give_it_a_place_of_its_own(bundled: Packaged) -> None:
    before = default_directory(find_model("demo"))
    (bundled.package / "lookahead").mkdir()
    (bundled.package / "lookahead" / "tap.bin").write_bytes(b"correction")
    model = find_model("demo")
    assert [sidecar.path for sidecar in model.sidecars] == ["lookahead/tap.bin"]
    place = default_directory(model)
    assert place != before
    report = pull(model, place)
    assert report.sidecars == {"lookahead/tap.bin": "fetched"}
    assert (place / "lookahead" / "tap.bin").read_bytes() == b"correction"
    (bundled.package / "lookahead" / "tap.bin").write_bytes(b"a better one")
    assert default_directory(find_model("demo")) != place
