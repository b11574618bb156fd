"""What a sequence of tokens leaves behind for the next pass."""
