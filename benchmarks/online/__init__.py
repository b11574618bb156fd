"""Benchmarks of the running server."""
