"""Content blocks of the Messages API, read as text."""

from collections.abc import Sequence
from typing import Any

from slotstream_serve.dialects.anthropic_messages.fields import BLOCK
from slotstream_serve.dialects.base import JsonObject
from slotstream_serve.dialects.fields import FieldReader, joined_path, required_object, wrong_kind
from slotstream_serve.dialects.requests import refuse_images, refuse_linked_image
from slotstream_serve.errors import Refused, invalid

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
USER_TEXT_BLOCKS = ("text", "image", "document", "search_result")
RESULT_BLOCKS = (*USER_TEXT_BLOCKS, "tool_reference")
SKIPPED_SYSTEM_BLOCKS = ("tool_addition", "tool_removal")
ATTRIBUTION = "x-anthropic-billing-header:"
"""Begins a line that Claude Code writes into its instructions and changes with every conversation."""


def content_blocks(content: Any, path: str) -> Sequence[tuple[JsonObject, str]]:
    """Return the blocks of a content and the path of each; text is one block.

    Raises:
        Refused: It is neither text nor an array of objects.
    """
    if isinstance(content, str):
        return (({"type": "text", "text": content}, path),)
    if not isinstance(content, list):
        raise wrong_kind(path, content, "text", "array")
    return [
        (required_object(block, joined_path(path, index)), joined_path(path, index))
        for index, block in enumerate(content)
    ]


def block_text(block: JsonObject, path: str, allowed: Sequence[str]) -> str:
    """Return a block as text.

    Raises:
        Refused: It is malformed, of a type that is not allowed here, or an image.
    """
    fields = FieldReader(block, BLOCK, path=path)
    kind = fields.required_text("type")
    if kind not in allowed:
        raise unknown_block(kind, path)
    match kind:
        case "text":
            return fields.required_text("text")
        case "document":
            return _document(fields, path)
        case "search_result":
            return _search_result(fields, path)
        case "tool_reference":
            return f"Tool available: {fields.required_text('tool_name')}"
        case _:
            raise _image(fields.object("source") or {}, path)


def result_text(fields: FieldReader) -> str:
    """Return what a `tool_result` block says.

    Raises:
        Refused: Its content is malformed.
    """
    content = fields.value("content")
    blocks = [] if content is None else content_blocks(content, fields.path("content"))
    text = "\n".join(block_text(block, path, RESULT_BLOCKS) for block, path in blocks)
    return f"Error: {text}" if fields.boolean("is_error") else text


def system_text(content: Any, path: str) -> str:
    """Return the text of system instructions, without Claude Code's attribution line.

    Raises:
        Refused: They are neither text nor text blocks.
    """
    blocks = [
        (block, at) for block, at in content_blocks(content, path) if block.get("type") not in SKIPPED_SYSTEM_BLOCKS
    ]
    texts = [_without_attribution(block_text(block, at, ("text",))) for block, at in blocks]
    return "\n\n".join(text for text in texts if text)


def unknown_block(kind: str, path: str) -> Refused:
    """Return the refusal of a block, to be raised."""
    return invalid(f"{path} is a block of type {kind[:100]!r}, which cannot be read here", param=path)


def _without_attribution(text: str) -> str:
    if ATTRIBUTION not in text:
        return text
    return "\n".join(line for line in text.split("\n") if not line.startswith(ATTRIBUTION))


def _document(fields: FieldReader, path: str) -> str:
    source = fields.object("source")
    if source is None:
        raise wrong_kind(f"{path}.source", source, "object")
    title, context = fields.text("title"), fields.text("context")
    kind = source.get("type")
    if kind == "text":
        body = source.get("data")
        if not isinstance(body, str):
            raise wrong_kind(f"{path}.source.data", body, "text")
    elif kind == "content":
        inner = content_blocks(source.get("content"), f"{path}.source.content")
        body = "\n\n".join(block_text(block, at, ("text", "image")) for block, at in inner)
    elif kind in ("base64", "url", "file"):
        body = "[A document is attached here that this model cannot see: it reads documents as plain text only.]"
    else:
        raise invalid(f"{path}.source.type is {str(kind)[:50]!r}; use text or content", param=f"{path}.source.type")
    return "\n".join(filter(None, (title, context, body)))


def _search_result(fields: FieldReader, path: str) -> str:
    blocks = content_blocks(fields.value("content") or [], fields.path("content"))
    body = "\n".join(block_text(block, at, ("text",)) for block, at in blocks)
    return "\n".join(filter(None, (fields.text("title"), fields.text("source"), body)))


def _image(source: JsonObject, path: str) -> Refused:
    kind = source.get("type")
    if kind != "base64":
        return refuse_linked_image(path)
    media_type = source.get("media_type")
    if media_type not in IMAGE_TYPES:
        return invalid(
            f"{path}.source.media_type is {str(media_type)[:50]!r}; use one of {', '.join(IMAGE_TYPES)}",
            param=f"{path}.source.media_type",
        )
    return refuse_images(path)
