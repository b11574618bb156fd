"""Text in and out of the model: tokens, chat templates, incremental decoding, thinking."""
