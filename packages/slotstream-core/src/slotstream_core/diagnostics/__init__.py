"""Checks that a person, a test or an app can run on a checkpoint."""
