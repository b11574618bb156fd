"""Every dialect this server speaks."""

from importlib.metadata import version

from slotstream_serve.dialects.ai_gateway.dialect import AIGateway
from slotstream_serve.dialects.anthropic_messages.dialect import AnthropicMessages
from slotstream_serve.dialects.base import Dialect
from slotstream_serve.dialects.ollama.dialect import Ollama
from slotstream_serve.dialects.openai_chat.dialect import OpenAIChat
from slotstream_serve.dialects.openai_responses.dialect import OpenAIResponses


def all_dialects() -> tuple[Dialect, ...]:
    """Return a fresh instance of each dialect."""
    return (
        Ollama(version=version("slotstream-serve")),
        OpenAIChat(),
        OpenAIResponses(),
        AnthropicMessages(),
        AIGateway(),
    )
