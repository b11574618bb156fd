"""Every dialect this server speaks."""

from importlib.metadata import version

from slotstream_serve.dialects.base import Dialect
from slotstream_serve.dialects.ollama.dialect import Ollama
from slotstream_serve.dialects.openai_chat.dialect import OpenAIChat


def all_dialects() -> tuple[Dialect, ...]:
    """Return a fresh instance of each dialect."""
    return (Ollama(version=version("slotstream-serve")), OpenAIChat())
