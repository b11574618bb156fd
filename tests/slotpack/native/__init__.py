"""The C coder's own tests."""
