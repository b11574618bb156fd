"""Anthropic's Messages API, which Claude Code and the Anthropic SDKs use."""

from slotstream_serve.dialects.anthropic_messages.dialect import AnthropicMessages

__all__ = ["AnthropicMessages"]
