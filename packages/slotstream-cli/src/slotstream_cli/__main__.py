"""`python -m slotstream_cli`."""

from slotstream_cli.main import main

main()
