"""What a program does with LiteLLM, run as a process of its own: it sets up logging and threads when imported.

LITELLM_LOCAL_MODEL_COST_MAP=True python -m tests.e2e.litellm_session URL MODEL
"""

import json
import sys
from typing import Any

import litellm

QUESTION: Any = [{"role": "user", "content": "What is the weather in Bern?"}]
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


def session(model: str, api_base: str) -> dict[str, Any]:
    """Chat whole and streamed, and let the model call a tool, through one of LiteLLM's providers."""
    shared: Any = {"model": model, "api_base": api_base, "api_key": "unused", "temperature": 0}
    whole: Any = litellm.completion(messages=QUESTION, max_tokens=16, **shared)
    chunks: Any = litellm.completion(messages=QUESTION, max_tokens=16, stream=True, **shared)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    turn = litellm.completion(messages=QUESTION, tools=TOOLS, **shared).choices[0].message
    (call,) = turn.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "Sunny, 21 C"}
    answer: Any = litellm.completion(
        messages=[*QUESTION, turn.model_dump(exclude_none=True), result], tools=TOOLS, max_tokens=32, **shared
    )
    return {
        "whole": whole.choices[0].message.content,
        "streamed": streamed,
        "call": [call.function.name, json.loads(call.function.arguments)],
        "answer": answer.choices[0].message.content,
    }


def main() -> None:
    """Print what each provider gave, as one JSON object."""
    url, model = sys.argv[1:]
    seen = {
        "openai": session(f"openai/{model}", f"{url}/v1"),
        "ollama_chat": session(f"ollama_chat/{model}", url),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
