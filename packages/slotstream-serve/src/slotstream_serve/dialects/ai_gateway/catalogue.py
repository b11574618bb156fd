"""What the gateway's clients are told about the served model.

Clients of the gateway know models by hosted names, and use some of them for side tasks; the aliases answer to those
names with the served model.  Every window is the served one, and every reply budget is smaller than its window: clients
reserve room for a reply only then.
"""

from collections.abc import Mapping
from typing import Any

from slotstream_serve.dialects.base import JsonObject, ModelFacts

PREFIX = "slotstream/"
EFFORTS = ("none", "low", "medium", "xhigh")
SIDE_TASK_ALIAS = "openai/gpt-5.6-luna"
"""What fx calls the model that summarises long sessions; a small window keeps each piece short."""

SIDE_TASK_WINDOW_TOKENS = 8192
SIDE_TASK_OUTPUT_TOKENS = 512
ALIASES = ("moonshotai/kimi-k3", SIDE_TASK_ALIAS, "google/gemini-2.5-flash")


def language_models(model: ModelFacts) -> JsonObject:
    """Return the catalogue of `/coding-agent/v1/models`."""
    entries = [_entry(f"{PREFIX}{model.name}", model, window=model.window_tokens, output=model.max_output_tokens)]
    entries[0]["reasoning_options"] = [{"type": "effort", "values": list(EFFORTS)}]
    for alias in ALIASES:
        window, output = model.window_tokens, model.max_output_tokens
        if alias == SIDE_TASK_ALIAS:
            window = min(window, SIDE_TASK_WINDOW_TOKENS)
            output = max(1, min(output, SIDE_TASK_OUTPUT_TOKENS, window - 1))
        entries.append(_entry(alias, model, window=window, output=output))
    return {"object": "list", "data": entries}


def available_models(model: ModelFacts, specification: str) -> JsonObject:
    """Return the answer of `/config`; clients of either specification (`v3`, `v4`) take only their own form."""
    model_id = f"{PREFIX}{model.name}"
    return {
        "models": [
            {
                "id": model_id,
                "name": model.name,
                "description": f"{model.family}, {model.parameter_size} parameters, {model.quantization}",
                "pricing": {"input": "0", "output": "0"},
                "specification": {
                    "specificationVersion": specification,
                    "provider": "slotstream",
                    "modelId": model_id,
                },
                "modelType": "language",
            }
        ]
    }


def installed_models(model: ModelFacts) -> JsonObject:
    """Return the answer of `/api/v1/models`, in both forms that clients look for there.

    Router clients read `data`; clients that probe for local servers read `models` and take the window from the loaded
    instance.
    """
    capabilities: Mapping[str, Any] = {"vision": model.vision, "trained_for_tool_use": True}
    return {
        "object": "list",
        "data": [
            {
                "id": model.name,
                "object": "model",
                "name": model.name,
                "created": int(model.modified_at),
                "context_length": model.window_tokens,
                "max_output_tokens": model.max_output_tokens,
            }
        ],
        "models": [
            {
                "type": "llm",
                "key": model.name,
                "id": model.name,
                "display_name": model.name,
                "architecture": model.family,
                "quantization": {"name": model.quantization},
                "size_bytes": model.size_bytes,
                "params_string": model.parameter_size,
                "format": "safetensors",
                "max_context_length": model.window_tokens,
                "capabilities": dict(capabilities),
                "loaded_instances": [{"id": model.name, "config": {"context_length": model.window_tokens}}],
            }
        ],
    }


def _entry(model_id: str, model: ModelFacts, *, window: int, output: int) -> JsonObject:
    return {
        "id": model_id,
        "type": "language",
        "released": int(model.modified_at),
        "tags": ["tool-use", "vision"] if model.vision else ["tool-use"],
        "context_window": window,
        "max_tokens": output,
        "context_policy": dict(model.context_policy),
    }
