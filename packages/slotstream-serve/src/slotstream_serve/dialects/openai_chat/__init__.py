"""OpenAI's Chat Completions API and model list."""
