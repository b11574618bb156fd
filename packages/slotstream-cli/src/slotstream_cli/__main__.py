"""`python -m slotstream_cli`."""

from slotstream_cli.starting import run_command_line

run_command_line()
