"""`slotstream convert`: a Hugging Face checkpoint into the layout that is streamed."""

from pathlib import Path

import click

from slotstream_cli.number_options import FiniteRange

_WIDTHS = click.Choice(["4", "8"])


@click.command("convert")
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("destination", metavar="DST", type=click.Path(path_type=Path))
@click.option("--bits", type=_WIDTHS, help="Bits of a quantised value.  [default: 4]")
@click.option("--dense-bits", type=_WIDTHS, help="Bits of everything but experts and n-grams.  [default: --bits]")
@click.option("--group-size", type=click.Choice(["32", "64", "128"]), help="Values that share a scale.  [default: 64]")
@click.option("--no-quantize", is_flag=True, help="Keep every tensor in its own floating type.")
@click.option(
    "--shard-gb",
    default=5.0,
    type=FiniteRange(min=0, max=1e6, min_open=True),
    show_default=True,
    help="File size.",
)
def command(
    *,
    source: Path,
    destination: Path,
    bits: str | None,
    dense_bits: str | None,
    group_size: str | None,
    no_quantize: bool,
    shard_gb: float,
) -> None:
    """Convert the Hugging Face checkpoint SRC into a new directory DST.

    Memory stays small whatever the model's size. An interrupted conversion continues when the command is run again.
    """
    if no_quantize and (bits or dense_bits or group_size):
        raise click.UsageError(
            "--no-quantize keeps every tensor as it is; leave out --bits, --dense-bits, --group-size"
        )
    from slotstream_cli.converting import convert
    from slotstream_core.checkpoint.storage import StorageOptions

    storage = StorageOptions(
        bits=None if no_quantize else int(bits or 4),
        dense_bits=int(dense_bits) if dense_bits else None,
        group_size=int(group_size or 64),
    )
    convert(source, destination, storage=storage, shard_bytes=max(1, int(shard_gb * 1e9)))
