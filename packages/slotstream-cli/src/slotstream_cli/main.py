"""The `slotstream` command: a lazy group, so that `--help` imports no command's dependencies.

A command is one module under `commands` that exports a `click.Command` named `command`.  `COMMANDS` is the single table
of names; the summary is kept here so that the group's help needs no import either.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

from slotstream_cli.failures import shown_failures

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "run": ("run", "Answer one prompt and stop."),
        "chat": ("chat", "Talk with the model at the terminal."),
        "serve": ("serve", "Serve the model over HTTP."),
        "launch": ("launch", "Start a coding agent on the local model."),
        "stop": ("stop", "Stop the server on a port."),
        "prefix-cache": ("prefix_cache", "List or clear the conversations kept on disk."),
        "pull": ("pull", "Download a model: compressed, verified, resumable."),
        "parity": ("parity", "Write a checkpoint's logits for given token ids."),
        "doctor": ("doctor", "Show what fits on this machine and how fast it will be."),
        "convert": ("convert", "Convert a Hugging Face checkpoint into the layout that is streamed."),
        "repack": ("repack", "Write a model's experts as records of one read each."),
        "prefix-check": ("prefix_check", "Check that kept conversations leave replies alone."),
        "prefix-exact-check": ("prefix_exact_check", "Check that going on from kept conversations is exact."),
        "elastic-check": ("elastic_check", "Check that resizing the expert pool leaves the output alone."),
        "elastic-drill": ("elastic_drill", "Drive the memory governor through pressure and recovery."),
        "sweep-check": ("sweep_check", "Check that reading a prompt expert by expert leaves the reply alone."),
        "mtp-check": ("mtp_check", "Check that drafting leaves the output alone, and measure what it brings."),
        "template-check": ("template_check", "Render the chat template for a conversation, and check text and ids."),
        "calibrate": ("calibrate", "Measure a model on this machine for doctor's forecast."),
        "lookahead-fit": ("lookahead_fit", "Learn the correction of a model's expert forecasts."),
        "lookahead-report": ("lookahead_report", "Measure what reading experts ahead does here."),
        "context-check": ("context_check", "Run a prompt of a given length and compare its memory with the plan."),
        "prefill-schedule": ("prefill_schedule", "Show the passes a prompt is read in and the wait they imply."),
        "completion": ("completion", "Print the completion script of a shell."),
    }
)
"""Command name -> (module under `slotstream_cli.commands`, one-line summary)."""


class LazyGroup(click.Group):
    """A click group whose commands are imported at their first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, or None when there is no such command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"slotstream_cli.commands.{entry[0]}")
        command: click.Command = module.command
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the words before the command's name; failures are shown as `shown_failures` says."""
        with shown_failures():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; failures are shown as `shown_failures` says."""
        with shown_failures():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the table's summaries, importing none of them."""
        if COMMANDS:
            with formatter.section("Commands"):
                formatter.write_dl([(name, summary) for name, (_module, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="slotstream-cli", prog_name="slotstream")
def main() -> None:
    """Run a mixture-of-experts model that does not fit in memory, by streaming its experts from disk."""
