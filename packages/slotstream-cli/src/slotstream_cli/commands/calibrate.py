"""`slotstream calibrate`: measure a model on this machine, so that `doctor` forecasts from its own figures."""

from __future__ import annotations

import click

from slotpack.catalog import root_directory
from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model


@click.command("calibrate")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(2, 4096), help="Length of each reply.")
def command(*, model_name: str | None, tokens: int) -> None:
    """Load a model at several pool sizes, measure hits, time and reads, and save them for `slotstream doctor`.

    The profile replaces published and assumed figures in forecasts for this model on this machine.
    """
    from slotstream_core.diagnostics.calibration import record_profile
    from slotstream_planner.hitcurves import profile_path, write_profile

    choice = choose_model(model_name)
    with held_alone(choice.directory):
        profile = record_profile(choice.directory, name=choice.name, tokens=tokens)
    for share, hit in profile.curve.points:
        click.echo(f"{100 * share:5.1f}% of the experts in slots: {100 * hit:.1f}% hits")
    if profile.host_s_per_token is not None:
        click.echo(f"a token without reads: {1e3 * profile.host_s_per_token:.1f} ms")
    if profile.disk_bytes_per_s is not None:
        click.echo(f"expert reads: {profile.disk_bytes_per_s / 1e9:.2f} GB/s")
    path = profile_path(root_directory(), choice.name)
    try:
        write_profile(profile, path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}; the figures are not kept") from error
    click.echo(f"saved in {path}")
