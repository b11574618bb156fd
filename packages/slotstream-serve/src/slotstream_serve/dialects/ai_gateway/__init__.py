"""The AI SDK's gateway protocol, which fx and `@ai-sdk/gateway` use."""

from slotstream_serve.dialects.ai_gateway.dialect import AIGateway

__all__ = ["AIGateway"]
