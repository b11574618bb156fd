"""Numbers that commands state in their help before the server itself is imported."""

DEFAULT_PORT = 11434
MOST_IDLE_MINUTES = 10_080
"""Longest `--idle-exit`: a week."""
