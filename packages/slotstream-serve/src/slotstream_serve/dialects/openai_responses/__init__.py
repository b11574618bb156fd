"""OpenAI's Responses API, which Codex and newer OpenAI SDK code use."""

from slotstream_serve.dialects.openai_responses.dialect import OpenAIResponses

__all__ = ["OpenAIResponses"]
