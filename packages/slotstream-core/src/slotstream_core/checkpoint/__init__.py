"""Checkpoints on disk: settings, tensors, conversion from the Hugging Face layout, synthetic ones for tests."""
