"""Manifests: canonical bytes, and one refusal for every rule."""

from typing import Any

import pytest

from slotpack import errors
from slotpack.catalog import DEFAULT_MODEL, find_model
from slotpack.manifest import FileEntry, check_pins, is_safe_name, parse_manifest
from tests.slotpack.make_golden import A, B, C
from tests.slotpack.make_golden import encode_manifest as encoded
from tests.slotpack.make_golden import manifest_document as document


def changed(path: str, value: Any) -> bytes:
    """Return the document with the value at a dotted path replaced, or removed when it is None."""
    result = document()
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    target: Any = result
    for step in steps:
        target = target[step]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return encoded(result)


def test_a_manifest_survives_in_canonical_form() -> None:
    data = encoded(document())
    manifest = parse_manifest(data)
    assert manifest.to_bytes() == data
    assert parse_manifest(data, digest=manifest.digest) == manifest
    assert manifest.objects[0].path == f"objects/aa/{A}.bin"
    assert (manifest.transfer_bytes, manifest.model_bytes) == (201, 160)


def test_other_bytes_than_the_pinned_ones_are_refused_first() -> None:
    with pytest.raises(errors.ManifestDigest):
        parse_manifest(b"not even json", digest=A)


BROKEN: list[tuple[str, Any, type[errors.ManifestError]]] = [
    ("format", "slotpack-v2", errors.ManifestError),
    ("files", {}, errors.ManifestError),
    ("files", [], errors.ManifestError),
    ("objects", [], errors.ManifestError),
    ("objects", None, errors.ManifestError),
    ("files.0", 7, errors.ManifestError),
    ("files.0.path", "a/b", errors.ManifestError),
    ("files.0.path", "..", errors.ManifestError),
    ("files.0.path", "one\u0000", errors.ManifestError),
    ("files.0.path", "ONE", errors.ManifestError),
    ("files.1.path", "one", errors.ManifestError),
    ("files.1.path", "ONE", errors.ManifestError),
    ("files.0.size", -1, errors.ManifestError),
    ("files.0.size", True, errors.ManifestError),
    ("files.0.size", 1.5, errors.ManifestError),
    ("files.0.sha256", A.upper(), errors.ManifestError),
    ("files.0.sha256", A[:-1], errors.ManifestError),
    ("files.0.optional", 1, errors.ManifestError),
    ("files.0.size", 101, errors.MissingRanges),
    ("files.0.size", 99, errors.ManifestError),
    ("objects.0.size", 31, errors.ManifestError),
    ("objects.0.size", 41_943_073, errors.ManifestError),
    ("objects.0.rawSize", 0, errors.ManifestError),
    ("objects.0.rawSize", 41_943_041, errors.ManifestError),
    ("objects.0.rawSize", 61, errors.ManifestError),
    ("objects.0.rawSHA256", "x" * 64, errors.ManifestError),
    ("objects.0.ranges", [], errors.ManifestError),
    ("objects.0.ranges", [{"file": "one", "offset": i * 15, "length": 15} for i in range(4)], errors.ManifestError),
    ("objects.0.ranges.0.file", "nine", errors.ManifestError),
    ("objects.0.ranges.0.offset", -1, errors.ManifestError),
    ("objects.0.ranges.0.offset", 1, errors.MissingRanges),
    ("objects.1.ranges.0.offset", 59, errors.OverlappingRanges),
    ("objects.1.ranges.0.offset", 61, errors.MissingRanges),
    ("objects.2", None, errors.MissingRanges),
    ("files.1.optional", True, errors.MixedOptional),
]


@pytest.mark.parametrize(("path", "value", "error"), BROKEN)
def test_a_broken_manifest_meets_its_own_error(path: str, value: Any, error: type[errors.ManifestError]) -> None:
    with pytest.raises(errors.ManifestError) as caught:
        parse_manifest(changed(path, value))
    assert type(caught.value) is error


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000, b"{}"])
def test_what_is_no_manifest_is_refused_without_a_traceback(data: bytes) -> None:
    with pytest.raises(errors.ManifestError):
        parse_manifest(data)


def test_a_manifest_above_sixteen_mib_is_refused() -> None:
    with pytest.raises(errors.ManifestTooLarge):
        parse_manifest(bytes(16 * 2**20 + 1))


def test_more_than_20000_objects_are_refused() -> None:
    big = document()
    big["objects"] *= 6667
    with pytest.raises(errors.ManifestError, match="20,001"):
        parse_manifest(encoded(big))


def test_files_must_be_exactly_the_pinned_ones() -> None:
    manifest = parse_manifest(encoded(document()))
    check_pins(manifest, manifest.files)
    for pins in (
        manifest.files[:-1],
        (*manifest.files, FileEntry(path="new", size_bytes=1, sha256=A)),
        (FileEntry(path="one", size_bytes=100, sha256=B), *manifest.files[1:]),
        (*manifest.files[:2], FileEntry(path="mtp", size_bytes=10, sha256=C, optional=False)),
    ):
        with pytest.raises(errors.PinMismatch):
            check_pins(manifest, pins)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb", "c:d", "x" * 256])
def test_unsafe_names_are_not_safe(name: str) -> None:
    assert not is_safe_name(name)


def test_the_catalog_pins_all_25_files() -> None:
    model = find_model(DEFAULT_MODEL)
    assert len(model.files) == 25
    assert model.model_bytes == 105_264_463_248
    assert [entry.path for entry in model.files if entry.optional] == ["mtp.safetensors"]
    assert all(is_safe_name(entry.path) for entry in model.files)
    assert model.package_bases[0].endswith(f"/slotpack/v1/{model.manifest_sha256}")
    assert [base.split("/")[3] for base in model.raw_bases] == ["carloslfu", "pipenetwork"]


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(errors.UnknownModel, match=DEFAULT_MODEL):
        find_model("gpt")


def test_without_its_data_package_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotpack.catalog.find_bundle", lambda: None)
    with pytest.raises(errors.UnknownModel, match="slotstream-demo"):
        find_model("demo")
