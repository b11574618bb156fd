"""`slotstream parity`: logits of a checkpoint for given ids, as a file to compare."""

import io
import json
from pathlib import Path

import click

from slotstream_cli.files import check_writable, write_bytes_atomically
from slotstream_cli.locking import held_alone
from slotstream_cli.prompt_files import read_text


@click.command()
@click.option(
    "--model", "directory", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The checkpoint."
)
@click.option(
    "--tokens", required=True, type=click.Path(path_type=Path), metavar="FILE.json", help="A JSON list of token ids."
)
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.npz", help="Where to write.")
@click.option("--experts-per-layer", type=int, metavar="N", help="Expert slots, as a number a layer.")
@click.option("--chunk", type=click.IntRange(min=1), metavar="N", help="Tokens a pass; the default is one pass.")
@click.option("--greedy", type=click.IntRange(min=0), default=0, metavar="N", help="Also append N most likely tokens.")
def command(
    *, directory: Path, tokens: Path, out: Path, experts_per_layer: int | None, chunk: int | None, greedy: int
) -> None:
    """Write float32 `logits` [T, vocab] and, with --greedy, `ids` (prompt and continuation) to an .npz file."""
    import numpy as np

    from slotstream_core.diagnostics.parity import compute_parity

    check_writable(out)
    ids = read_ids(tokens)
    with held_alone(directory):
        result = compute_parity(directory, ids, experts_per_layer=experts_per_layer, chunk=chunk, greedy=greedy)
    arrays = {"logits": result.logits} | ({"ids": result.ids} if greedy else {})
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes_atomically(out, buffer.getvalue())
    click.echo(f"-- {out}: logits {list(result.logits.shape)}" + (f", {greedy} greedy ids" if greedy else ""), err=True)


def read_ids(path: Path) -> list[int]:
    """Return the token ids of a JSON file.

    Raises:
        click.ClickException: The file cannot be read or is not a list of whole numbers.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{path} is not JSON: {error}") from error
    if not isinstance(content, list) or not all(type(item) is int for item in content):
        raise click.ClickException(f"{path} must hold a JSON list of whole numbers, such as [1, 2, 3]")
    return content
