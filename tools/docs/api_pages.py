"""Render `docs/api/<dialect>.md`: a hand-written introduction, then the dialect's own field tables."""

from collections.abc import Callable, Sequence
from pathlib import Path

from slotstream_serve.dialects.ai_gateway.fields import TABLES as AI_GATEWAY
from slotstream_serve.dialects.anthropic_messages.fields import TABLES as ANTHROPIC_MESSAGES
from slotstream_serve.dialects.fields import KIND_NAMES, Field, FieldTable, json_words
from slotstream_serve.dialects.ollama.fields import TABLES as OLLAMA
from slotstream_serve.dialects.openai_chat.fields import TABLES as OPENAI_CHAT
from slotstream_serve.dialects.openai_responses.fields import TABLES as OPENAI_RESPONSES

INTRODUCTIONS = Path(__file__).with_name("api")
DIALECTS: dict[str, Sequence[FieldTable]] = {
    "ollama": OLLAMA,
    "openai-chat": OPENAI_CHAT,
    "openai-responses": OPENAI_RESPONSES,
    "anthropic-messages": ANTHROPIC_MESSAGES,
    "ai-gateway": AI_GATEWAY,
}
USES = {"used": "used", "accepted": "accepted without effect", "refused": "refused"}
UNKNOWN = {
    "refused": "Unknown fields are refused.",
    "ignored": "Unknown fields are ignored; the reply names them in `X-Slotstream-Ignored-Fields`.",
    "skipped": "Unknown fields are ignored.",
}
NOTICE = "Field tables below are generated from the code by `make docs`; `null` means unset everywhere.\n"


def api_pages() -> dict[str, Callable[[], str]]:
    """Return every page of `docs/api/` that is generated, by its path."""
    return {f"docs/api/{name}.md": _page(name, tables) for name, tables in DIALECTS.items()}


def field_rows(table: FieldTable) -> list[str]:
    """Return a table's Markdown rows, without its head."""
    return [
        f"| `{field.name}` | {USES[field.use]} | {_values(field)} | {_cell(field.note)} |" for field in table.fields
    ]


def _page(name: str, tables: Sequence[FieldTable]) -> Callable[[], str]:
    def render() -> str:
        introduction = (INTRODUCTIONS / f"{name}.md").read_text(encoding="utf-8").rstrip()
        return "\n".join([introduction, "", "## Fields", "", NOTICE, *(_section(table) for table in tables)])

    return render


def _section(table: FieldTable) -> str:
    head = [f"### {table.title}", "", "| Field | Use | Values | Meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *field_rows(table), "", UNKNOWN[table.unknown], ""])


def _values(field: Field) -> str:
    if field.use == "refused":
        return "none"
    if field.only is not None:
        return "only " + " or ".join(f"`{_json(value)}`" for value in field.only)
    kinds = " or ".join(KIND_NAMES[kind] for kind in field.kinds) or "anything"
    return kinds if field.least is None else f"{kinds}, at least {field.least}"


def _json(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else json_words(value).replace("'", '"')


def _cell(note: str) -> str:
    return (note[:1].upper() + note[1:]).replace("|", "\\|")
