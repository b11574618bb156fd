"""Every field of the Messages API: the parser holds requests to these tables, and the documentation shows them."""

from dataclasses import replace

from slotstream_serve.dialects.fields import Field, FieldTable

REQUEST = FieldTable(
    title="Request",
    unknown="ignored",
    fields=(
        Field(name="model", use="used", kinds=("text",), note="Name of the served model; required"),
        Field(name="messages", use="used", kinds=("array",), note="The conversation; required"),
        Field(name="max_tokens", use="used", kinds=("integer",), least=1, note="Output budget in tokens; required"),
        Field(name="system", use="used", kinds=("text", "array"), note="System instructions: text or text blocks"),
        Field(name="stop_sequences", use="used", kinds=("array",), note="Texts that end the answer"),
        Field(name="stream", use="used", kinds=("boolean",), note="Default `false`"),
        Field(name="temperature", use="used", kinds=("number",), note="Brought into the supported range"),
        Field(name="top_p", use="used", kinds=("number",), note="Brought into the supported range"),
        Field(name="top_k", use="used", kinds=("integer",), note="Brought into the supported range"),
        Field(name="tools", use="used", kinds=("array",), note="See the tools below"),
        Field(name="tool_choice", use="used", kinds=("object",), note="See below"),
        Field(name="thinking", use="used", kinds=("object",), note="See below; without it the model does not think"),
        Field(name="output_config", use="used", kinds=("object",), note="See below"),
        Field(name="metadata", use="accepted", kinds=("object",), note="Nothing is reported"),
        Field(
            name="context_management", use="accepted", kinds=("object",), note="The server does not edit conversations"
        ),
        Field(name="service_tier", use="accepted", kinds=("text",), note="There is one tier"),
        Field(name="container", use="refused", note="the server runs no code"),
        Field(
            name="mcp_servers",
            use="accepted",
            only=([],),
            note="the server connects to no tool servers; let the client do that",
        ),
        Field(
            name="output_format",
            use="refused",
            note="replies cannot be forced into a schema; describe the form in words and check the reply",
        ),
    ),
)

COUNT_REQUEST = replace(
    REQUEST,
    title="Token count",
    fields=tuple(
        replace(field, use="accepted", note="Not needed to count") if field.name in ("max_tokens", "stream") else field
        for field in REQUEST.fields
    ),
)

THINKING = FieldTable(
    title="`thinking`",
    unknown="skipped",
    fields=(
        Field(
            name="type",
            use="used",
            kinds=("text",),
            note="`adaptive`: on, at the level of `output_config.effort` (`high` without one); `enabled`: on, at the "
            "level its budget stands for; `disabled`: off; required",
        ),
        Field(
            name="budget_tokens",
            use="used",
            kinds=("integer",),
            least=1,
            note="With `enabled`, required: below 4,096 is low, below 16,384 medium, more is high",
        ),
        Field(
            name="display",
            use="used",
            kinds=("text",),
            note="`omitted` returns thinking blocks without their text; any other value shows it",
        ),
    ),
)

OUTPUT_CONFIG = FieldTable(
    title="`output_config`",
    unknown="skipped",
    fields=(
        Field(
            name="effort", use="used", kinds=("text",), note="`low`, `medium`, `high`, `xhigh` or `max`, when thinking"
        ),
        Field(
            name="format",
            use="refused",
            note="replies cannot be forced into a schema; describe the form in words and check the reply",
        ),
    ),
)

TOOL_CHOICE = FieldTable(
    title="`tool_choice`",
    unknown="skipped",
    fields=(
        Field(name="type", use="used", kinds=("text",), note="`auto`, `any`, `none` or `tool`; required"),
        Field(name="name", use="used", kinds=("text",), note="With `tool`: the one that must be called"),
        Field(
            name="disable_parallel_tool_use",
            use="used",
            kinds=("boolean",),
            note="`true` ends the reply after its first complete call",
        ),
    ),
)

TOOL = FieldTable(
    title="Tool",
    unknown="skipped",
    fields=(
        Field(
            name="type",
            use="used",
            kinds=("text",),
            note="None or `custom`; tools that run on Anthropic's servers are left out, other types refused",
        ),
        Field(name="name", use="used", kinds=("text",), note="Required"),
        Field(name="description", use="used", kinds=("text",), note="What it does"),
        Field(name="input_schema", use="used", kinds=("object",), note="JSON schema of its input; required"),
        Field(name="strict", use="accepted", kinds=("boolean",), note="Calls are complete JSON objects, not validated"),
        Field(name="cache_control", use="accepted", note="Prompts are reused without it"),
    ),
)

MESSAGE = FieldTable(
    title="Message",
    unknown="skipped",
    fields=(
        Field(name="role", use="used", kinds=("text",), note="`user`, `assistant` or `system`; required"),
        Field(name="content", use="used", kinds=("text", "array"), note="Text or blocks; required"),
    ),
)

BLOCK = FieldTable(
    title="Content blocks",
    unknown="skipped",
    fields=(
        Field(
            name="type",
            use="used",
            kinds=("text",),
            note="User: `text`, `image`, `document`, `search_result`, `tool_result`; assistant: `text`, `thinking`, "
            "`redacted_thinking` (left out), `tool_use`; system: `text`, and `tool_addition` and `tool_removal` (left "
            "out); inside a tool's result also `tool_reference`; others are refused",
        ),
        Field(name="text", use="used", kinds=("text",), note="Of a `text` block"),
        Field(name="thinking", use="used", kinds=("text",), note="Of a `thinking` block; may be empty"),
        Field(name="signature", use="used", kinds=("text",), note="Holds the reasoning of a `thinking` block"),
        Field(name="id", use="used", kinds=("text",), note="Of a `tool_use` block"),
        Field(name="name", use="used", kinds=("text",), note="Of a `tool_use` block"),
        Field(name="input", use="used", kinds=("object",), note="Of a `tool_use` block"),
        Field(name="tool_use_id", use="used", kinds=("text",), note="Of a `tool_result` block"),
        Field(name="tool_name", use="used", kinds=("text",), note="Of a `tool_reference` block"),
        Field(name="is_error", use="used", kinds=("boolean",), note="Puts `Error:` before the result"),
        Field(
            name="content",
            use="used",
            kinds=("text", "array"),
            note="Of a `tool_result` or `search_result` block",
        ),
        Field(
            name="source",
            use="used",
            kinds=("text", "object"),
            note="Of an `image`, `document` or `search_result` block; a document that is no text becomes a note",
        ),
        Field(name="title", use="used", kinds=("text",), note="Of a `document` or `search_result` block"),
        Field(name="context", use="used", kinds=("text",), note="Of a `document` block"),
        Field(name="citations", use="accepted", note="The model cites nothing"),
        Field(name="cache_control", use="accepted", note="Prompts are reused without it"),
    ),
)

TABLES = (REQUEST, COUNT_REQUEST, THINKING, OUTPUT_CONFIG, TOOL_CHOICE, TOOL, MESSAGE, BLOCK)
"""Every table, in the order of the documentation."""
