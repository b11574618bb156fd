"""The models that can be pulled by name, with everything that is pinned about them."""

import dataclasses
import hashlib
import importlib.util
import os
import pathlib
import stat

from slotpack.errors import UnknownModel, UnusableRoot
from slotpack.files import hash_file
from slotpack.manifest import MANIFEST_NAME, FileEntry, parse_manifest
from slotpack.resume import MARGIN_BYTES

DEFAULT_MODEL = "qwen3.8-flash-next:4bit"
DEMO_MODEL = "demo"
ROOT_VARIABLE = "SLOTSTREAM_ROOT_DIR"
ADVICE = "models and state live in a directory there: remove it or name another"
DEMO_MARGIN_BYTES = 50 * 10**6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sidecar:
    """A small optional file outside the package.

    Attributes:
        path: Path below the model directory; may have one directory.
        size_bytes: Exact length.
        sha256: Digest.
        base: Where it is, in front of `path`.
    """

    path: str
    size_bytes: int
    sha256: str
    base: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CatalogModel:
    """A model with its pins.

    Attributes:
        name: What a user types.
        directory_name: Directory below the models root.
        files: The authority on paths, lengths, digests and optional files.
        manifest_sha256: Pinned digest of the package's manifest.
        transfer_bytes: Bytes of the compressed package, manifest included.
        package_bases: Bases of the compressed package, tried in order.
        raw_bases: Bases of the original files, tried in order.
        sidecars: Files fetched after the model; they never fail a pull.
        margin_bytes: What must stay free on the disk.
    """

    name: str
    directory_name: str
    files: tuple[FileEntry, ...]
    manifest_sha256: str
    transfer_bytes: int
    package_bases: tuple[str, ...]
    raw_bases: tuple[str, ...] = ()
    sidecars: tuple[Sidecar, ...] = ()
    margin_bytes: int = MARGIN_BYTES

    @property
    def model_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size_bytes for entry in self.files)

    def looks_complete(self, directory: pathlib.Path) -> bool:
        """Tell by name and size, without hashing, whether every required file is there."""
        try:
            return all(
                (directory / entry.path).stat().st_size == entry.size_bytes
                for entry in self.files
                if not entry.optional
            )
        except OSError:
            return False

    @property
    def is_bundled(self) -> bool:
        """Whether the package came with the installation, so that no network is needed."""
        return all(base.startswith("file:") for base in self.package_bases)


def root_directory() -> pathlib.Path:
    """Return where models and state live: SLOTSTREAM_ROOT_DIR, or ~/.slotstream.  It need not be there yet.

    Raises:
        UnusableRoot: The home directory is unknown, or something other than a directory is there.
    """
    configured = os.environ.get(ROOT_VARIABLE)
    try:
        root = pathlib.Path(configured).expanduser() if configured else pathlib.Path.home() / ".slotstream"
    except RuntimeError as error:
        raise UnusableRoot(f"the home directory is unknown ({error}); set HOME or {ROOT_VARIABLE}") from error
    try:
        mode = root.stat().st_mode
    except FileNotFoundError:
        if root.is_symlink():
            raise UnusableRoot(f"{_named(root)} is a link to something that is not there; {ADVICE}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnusableRoot(f"{_named(root)} cannot be used: {reason}; {ADVICE}") from error
    else:
        if not stat.S_ISDIR(mode):
            raise UnusableRoot(f"{_named(root)} is no directory; {ADVICE}")
    return root


def _named(root: pathlib.Path) -> str:
    return f"{ROOT_VARIABLE}, {root}," if os.environ.get(ROOT_VARIABLE) else str(root)


def models_root() -> pathlib.Path:
    """Return the directory that holds models by default."""
    return root_directory() / "models"


def default_directory(model: CatalogModel) -> pathlib.Path:
    """Return where a model goes when no directory is given."""
    return models_root() / model.directory_name


def _qwen38() -> CatalogModel:
    mirror = "https://huggingface.co/carloslfu/Qwen3.8-Flash-Next-MLX-4bit/resolve"
    digest = "cf5461819d34044fcfaff7be230ea6c9ba595247a3f3018033c8dc85bc363a38"
    package = "https://huggingface.co/carloslfu/Qwen3.8-Flash-Next-MLX-4bit-Slotpack/resolve"
    original = "https://huggingface.co/pipenetwork/Qwen3.8-Flash-Next-MLX-4bit/resolve"
    return CatalogModel(
        name=DEFAULT_MODEL,
        directory_name="qwen38-flash-next-mlx-4bit",
        files=tuple(
            FileEntry(path=path, size_bytes=size, sha256=sha256, optional=path == "mtp.safetensors")
            for path, size, sha256 in _QWEN38_FILES
        ),
        manifest_sha256=digest,
        transfer_bytes=88_295_438_048,
        package_bases=(f"{package}/13ec15dcebdddc817b57f0f9087c5ef82018f10e/slotpack/v1/{digest}",),
        raw_bases=(
            f"{mirror}/e9d552f83de4665d243d5c9cf73201a1ca6c16d7",
            f"{original}/aa7c790e804bbf9d491ddb109c3d61bc4a555f7c",
        ),
        sidecars=(
            Sidecar(
                path="lookahead/tap-correction-attention-rank128-v1.safetensors",
                size_bytes=37540708,
                sha256="37b00d3a32d1e1889a1794bbb8e97905a157a77c0508db620c1a11f2a895f7f5",
                base=f"{mirror}/8c1f9c34e4567e83d46cebe1af432e8eba4f3ea8",
            ),
        ),
    )


def find_bundle(module: str = "slotstream_demo") -> pathlib.Path | None:
    """Return the `package` directory of an installed data package, without importing it."""
    spec = importlib.util.find_spec(module)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        directory = pathlib.Path(location) / "package"
        if (directory / MANIFEST_NAME).is_file():
            return directory
    return None


def model_from_package(
    package: pathlib.Path, *, name: str, directory_name: str, margin_bytes: int = DEMO_MARGIN_BYTES
) -> CatalogModel:
    """Return a model whose pins are a local package's own manifest.

    Raises:
        ManifestError: When the package's manifest is broken.
    """
    path = package / MANIFEST_NAME
    manifest = parse_manifest(path.read_bytes())
    return CatalogModel(
        name=name,
        directory_name=directory_name,
        files=manifest.files,
        manifest_sha256=hash_file(path),
        transfer_bytes=manifest.transfer_bytes + path.stat().st_size,
        package_bases=(package.resolve().as_uri(),),
        sidecars=bundled_sidecars(package),
        margin_bytes=margin_bytes,
    )


def bundled_sidecars(package: pathlib.Path) -> tuple[Sidecar, ...]:
    """Return the sidecars that lie in a local package: the files of its directories other than `objects`."""
    return tuple(
        Sidecar(
            path=path.relative_to(package).as_posix(),
            size_bytes=path.stat().st_size,
            sha256=hash_file(path),
            base=package.resolve().as_uri(),
        )
        for path in sorted(package.glob("*/*"))
        if path.is_file() and path.parent.name != "objects"
    )


def find_model(name: str) -> CatalogModel:
    """Return a model by name.

    Raises:
        UnknownModel: With the names that exist.
    """
    if name == DEFAULT_MODEL:
        return _qwen38()
    if name == DEMO_MODEL:
        bundle = find_bundle()
        if bundle is None:
            raise UnknownModel("the demo model is not installed; install the package slotstream-demo")
        parts = [hash_file(bundle / MANIFEST_NAME), *(sidecar.sha256 for sidecar in bundled_sidecars(bundle))]
        version = (parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest())[:12]
        return model_from_package(bundle, name=DEMO_MODEL, directory_name=f"demo-{version}")
    raise UnknownModel(f"there is no model named {name!r}; the catalog has {DEFAULT_MODEL} and {DEMO_MODEL}")


_QWEN38_FILES: tuple[tuple[str, int, str], ...] = (
    ("LICENSE", 3235, "a0dc422560841fd68e06d974907f8b4c709bca44a67daad2b528437bdf676c08"),
    ("README.md", 6139, "db1e0d8575543e7a8d324fd22afd2d596a002e9163ed1f971b6b8df0abbe65fd"),
    ("chat_template.jinja", 8952, "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041"),
    ("config.json", 33408, "0da22a8ed4323fbe969bf982aeb054743b315206791f28ef74a309c707080ba5"),
    ("generation_config.json", 202, "e70c136c1b78ddc1fb0905bac8e733a4dc448d4f852a5dd75143fffc70be550e"),
    ("merges.txt", 3353259, "a9d356d7bdf1ef4949e3e748e95b8e10ad9d4e2e838eddc38a0a7b6b94d1db8d"),
    ("model-00001.safetensors", 10039592993, "206c2e6ee138c902115f0686a43e0d56097518945bbcd6d3ab10bf916278f86c"),
    ("model-00002.safetensors", 10000066971, "48f925c8652fd3210bd8593b41b9fbd66f02567e0e1e7abc28b75e2601f8af26"),
    ("model-00003.safetensors", 10000066984, "cb0a951b9aed16ddad882a75c4c07b2615fa364db7c83cfcf7166dc481def85a"),
    ("model-00004.safetensors", 10170248438, "f57df447a6acc2d16e69a66c708291d692f0f7476f74ab20aee3d2554c2896c8"),
    ("model-00005.safetensors", 10194989755, "bc133543936364e026b413f1ab4b30f2847846d5a8cc1d201cadfd9396327320"),
    ("model-00006.safetensors", 10262727991, "9231085f2723a8a3e26fc00836a789400527320ef8a6e219df6974ea4f8eee95"),
    ("model-00007.safetensors", 10190937668, "03dffb750368b02fe517f2f1bfd7d5db69c419630801c3ffce88d8a6971046d5"),
    ("model-00008.safetensors", 10231122683, "910401c0e420a50b901b170895e7a180c5908a45634be9c92903977ecaa14986"),
    ("model-00009.safetensors", 10250305804, "0c77b22503b8e783cc345cd8afe63e007f9d0d0581cbda3f366250e38e096634"),
    ("model-00010.safetensors", 10237786674, "115466ffb3e92a8e2a338d72395f7c32a176dadc791d2049ff9a8daadb347ed7"),
    ("model-00011.safetensors", 2192353120, "9128a9cbf81cd25bc4cbebe8adeefa12fa36ee96fcccb6f5fe378343b45131f0"),
    ("model.safetensors.index.json", 317973, "072cc2c60b8af6cce82a387f62e39ca88754c3a6fccae0816dd21bb89d27470d"),
    ("preprocessor_config.json", 390, "27225450ac9c6529872ee1924fcb0962ff5634834f817040f444118116f4e516"),
    ("qwen4_exp.py", 35046, "6fae4ec0decbf77ca4a4571de683bc5580ec75e84325ecb432dfcd2fc81df75e"),
    ("tokenizer.json", 12809320, "0997f410c57a1f4e53b09e4be8f4a172d90edd9564368fb0847030937229b9f3"),
    ("tokenizer_config.json", 17928, "b11349aafa7cdc6a320767cf7ceb29ed82f7eda5d65e8e0819e76f0ce947bf27"),
    ("video_preprocessor_config.json", 385, "7768af27c1fafa9cc9011c1dc20067e03f8915e03b63504550e11d5066986d13"),
    ("vocab.json", 6722759, "ce99b4cb2983d118806ce0a8b777a35b093e2000a503ebde25853284c9dfa003"),
    ("mtp.safetensors", 1470955171, "c80b58faae46eeacb94dea49dd3453566ee05597fbd28c7c647eccb2862ab744"),
)
