"""Checks that every dialect makes of a request: the model's name, sampling values, stop texts."""

from collections.abc import Sequence
from typing import Any

from slotstream_serve.conversation import Profile, Reasoning, SamplingOverrides, ToolSpec
from slotstream_serve.dialects.base import ModelFacts
from slotstream_serve.dialects.fields import FieldReader, is_kind, wrong_kind
from slotstream_serve.errors import Failure, Refused, invalid

MOST_STOP_TEXTS = 64
LARGEST_SEED = 2**64
LARGEST_TOP_K = 2**31 - 1

IN_MEMORY = "in_memory"
"""The `prompt_cache_retention` of a conversation that is not to be kept on disk."""


def check_model(name: str, model: ModelFacts, *, status: int = 400) -> None:
    """Check that a request is for the served model.

    Args:
        name: What the client calls it.
        model: What is served.
        status: HTTP status of the refusal.

    Raises:
        Refused: It is another model.
    """
    if name not in model.names:
        message = f"model {name[:200]!r} is not served here; the model is {model.name!r}"
        raise Refused(Failure(code="model_not_found", message=message, param="model", status=status))


def sampling_overrides(fields: FieldReader) -> SamplingOverrides:
    """Return the sampling values of an object whose table has all of the usual names.

    Values outside a supported range are not refused: the sampler brings them into it.
    """
    top_k = fields.integer("top_k")
    return SamplingOverrides(
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        top_k=None if top_k is None else min(max(0, top_k), LARGEST_TOP_K),
        min_p=fields.number("min_p"),
        presence_penalty=fields.number("presence_penalty"),
        seed=seed_of(fields.integer("seed")),
    )


def seed_of(value: int | None) -> int | None:
    """Return a seed as the 64 bits that the random stream has; -1 and its like are as good as any other."""
    return None if value is None else value % LARGEST_SEED


def stop_texts(value: Any, *, path: str) -> tuple[str, ...]:
    """Return stop texts: one text or an array of them; empty ones stop nothing and are left out.

    Raises:
        Refused: It is something else, or too many.
    """
    if value is None:
        return ()
    texts = value if isinstance(value, list) else [value]
    for index, text in enumerate(texts):
        if not is_kind(text, "text"):
            raise wrong_kind(f"{path}.{index}" if isinstance(value, list) else path, text, "text")
    if len(texts) > MOST_STOP_TEXTS:
        raise invalid(f"{path} has {len(texts)} texts; at most {MOST_STOP_TEXTS} are supported", param=path)
    return tuple(text for text in texts if text)


def profile_for(tools: Sequence[ToolSpec], reasoning: Reasoning) -> Profile:
    """Return which default sampling a request gets."""
    if tools:
        return "agent"
    return "thinking" if reasoning.enabled else "ordinary"


def window_limit(num_ctx: int | None, model: ModelFacts, *, path: str) -> int | None:
    """Return the smaller window a client asks for.

    Raises:
        Refused: It is larger than the served one.
    """
    if num_ctx is not None and num_ctx > model.window_tokens:
        raise invalid(
            f"{path} is {num_ctx}, but the served window is {model.window_tokens} tokens; "
            "leave it out, or serve a larger window with --max-context",
            param=path,
        )
    return num_ctx


def refuse_images(path: str, *, code: str | None = None) -> Refused:
    """Return the refusal of an image, to be raised; `code` is the dialect's own."""
    return invalid(
        f"{path} is an image, and this server reads text only; send the request without images",
        param=path,
        dialect_code=code,
    )


def refuse_linked_image(path: str, *, code: str | None = None) -> Refused:
    """Return the refusal of an image that is a reference instead of bytes, to be raised."""
    return invalid(
        f"{path} points to an image elsewhere; the server fetches nothing, so images can only come as inline bytes",
        param=path,
        dialect_code=code,
    )
