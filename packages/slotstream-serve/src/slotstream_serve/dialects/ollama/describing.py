"""Ollama's routes that describe the model, and those that this server cannot serve."""

from typing import Any, NoReturn

from slotstream_serve.dialects.base import Answer, JsonObject, ModelFacts, RequestContext
from slotstream_serve.dialects.fields import FieldReader, missing
from slotstream_serve.dialects.ollama.encoding import rfc3339
from slotstream_serve.dialects.ollama.fields import SHOW
from slotstream_serve.dialects.requests import check_model
from slotstream_serve.errors import Failure, Refused, invalid

CACHED_EXPERTS = "experts_per_layer_cached"
"""Where a memory plan says how many experts of a layer it has room for, on average."""
EXPIRES_AFTER_S = 3600.0
TEMPLATE = "{{ .Prompt }}"


def list_tags(_body: JsonObject, context: RequestContext) -> Answer:
    """Answer which models are installed: the served one."""
    return Answer(body={"models": [_card(context.model, context.model.size_bytes)]})


def list_running(_body: JsonObject, context: RequestContext) -> Answer:
    """Answer which models are loaded, and in how much memory."""
    model = context.model
    card = {
        **_card(model, model.resident_bytes),
        "size_vram": model.resident_bytes,
        "expires_at": rfc3339(context.now_s + EXPIRES_AFTER_S),
        "context_length": model.window_tokens,
    }
    return Answer(body={"models": [card]})


def show_model(body: JsonObject, context: RequestContext) -> Answer:
    """Describe the model.

    Raises:
        Refused: It is another model, or the request would change it.
    """
    fields, model = FieldReader(body, SHOW), context.model
    name = fields.text("model") or fields.text("name")
    if not name:
        raise missing("model")
    check_model(name, model, status=404)
    return Answer(
        body={
            "modelfile": f"FROM {model.name}\nTEMPLATE {TEMPLATE}\nPARAMETER num_ctx {model.window_tokens}\n",
            "parameters": f"num_ctx {model.window_tokens}",
            "template": TEMPLATE,
            "details": _details(model),
            "model_info": {
                "general.architecture": model.family,
                "general.parameter_count": model.parameters,
                f"{model.family}.context_length": model.window_tokens,
            },
            "capabilities": ["completion", "tools", "thinking", *(["vision"] if model.vision else [])],
            "modified_at": rfc3339(model.modified_at),
            "max_context_tokens": model.window_tokens,
            "context_policy": dict(model.context_policy),
        }
    )


def refuse_embeddings(_body: JsonObject, _context: RequestContext) -> NoReturn:
    """Refuse to embed.

    Raises:
        Refused: Always.
    """
    raise invalid("embeddings are not supported: the model only writes text; use an embedding model's own server")


def refuse_installing(_body: JsonObject, _context: RequestContext) -> NoReturn:
    """Refuse to install or change a model.

    Raises:
        Refused: Always.
    """
    message = "this server installs and changes no models; run `slotstream pull` on its machine"
    raise Refused(Failure(code="not_implemented", message=message))


def _card(model: ModelFacts, size_bytes: int) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": rfc3339(model.modified_at),
        "size": size_bytes,
        "digest": model.digest,
        "details": _details(model),
    }


def _details(model: ModelFacts) -> dict[str, Any]:
    plan = dict(model.memory_plan)
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": model.family,
        "families": [model.family],
        "parameter_size": model.parameter_size,
        "quantization_level": model.quantization,
        **({"expert_cache_per_layer": plan[CACHED_EXPERTS]} if CACHED_EXPERTS in plan else {}),
        **({"experts_per_layer": model.experts_per_layer} if model.experts_per_layer else {}),
        "memory_plan": plan,
    }
