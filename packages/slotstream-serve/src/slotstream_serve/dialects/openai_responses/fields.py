"""Every field of the Responses API: the parser holds requests to these tables, and the documentation shows them."""

from slotstream_serve.dialects.fields import Field, FieldTable

REQUEST = FieldTable(
    title="Request",
    code="unsupported_field",
    fields=(
        Field(name="model", use="used", kinds=("text",), note="Name of the served model; required"),
        Field(
            name="input", use="used", kinds=("text", "array"), note="The conversation: text or input items; required"
        ),
        Field(name="instructions", use="used", kinds=("text",), note="System instructions"),
        Field(name="tools", use="used", kinds=("array",), note="See the tools below"),
        Field(
            name="tool_choice",
            use="used",
            kinds=("text", "object"),
            note="`auto`, `none`, `required`, or a function or freeform tool by name; `allowed_tools` is refused",
        ),
        Field(
            name="parallel_tool_calls",
            use="used",
            kinds=("boolean",),
            note="`false` ends the reply after its first complete call",
        ),
        Field(name="reasoning", use="used", kinds=("object",), note="See below"),
        Field(name="max_output_tokens", use="used", kinds=("integer",), least=1, note="Output budget in tokens"),
        Field(name="temperature", use="used", kinds=("number",), note="Brought into the supported range"),
        Field(name="top_p", use="used", kinds=("number",), note="Brought into the supported range"),
        Field(name="stream", use="used", kinds=("boolean",), note="Default `false`"),
        Field(name="text", use="used", kinds=("object",), note="See below"),
        Field(name="store", use="accepted", kinds=("boolean",), note="Nothing is stored either way"),
        Field(name="include", use="accepted", kinds=("array",), note="There is nothing more to include"),
        Field(name="metadata", use="accepted", kinds=("object",), note="Repeated in the response"),
        Field(name="prompt_cache_key", use="accepted", kinds=("text",), note="Prompts are reused without it"),
        Field(
            name="prompt_cache_retention",
            use="used",
            kinds=("text",),
            note="`in_memory` keeps the conversation off the disk; prompts are reused without it",
        ),
        Field(name="safety_identifier", use="accepted", kinds=("text",), note="Nothing is reported"),
        Field(name="user", use="accepted", kinds=("text",), note="Repeated in the response"),
        Field(name="service_tier", use="accepted", kinds=("text",), note="There is one tier"),
        Field(name="stream_options", use="accepted", kinds=("object",), note="Nothing to change"),
        Field(name="client_metadata", use="accepted", note="A field of Codex"),
        Field(name="access_programs", use="accepted", note="A field of Codex"),
        Field(
            name="truncation",
            use="accepted",
            only=("disabled",),
            note="input is never cut; one that is too long is refused",
        ),
        Field(
            name="background", use="accepted", only=(False,), note="responses are not stored, so none can be fetched"
        ),
        Field(
            name="previous_response_id",
            use="refused",
            code="stored_state_unsupported",
            note="responses are not stored; send the whole conversation in `input`",
        ),
        Field(
            name="conversation",
            use="refused",
            code="stored_state_unsupported",
            note="conversations are not stored; send the whole conversation in `input`",
        ),
        Field(name="prompt", use="refused", note="prompt templates are not stored; send their text"),
        Field(name="context_management", use="refused", note="the server does not shorten conversations"),
        Field(name="max_tool_calls", use="refused", note="the server runs no tools itself"),
        Field(name="top_logprobs", use="refused", note="log probabilities are not reported"),
    ),
)

REASONING = FieldTable(
    title="`reasoning`",
    unknown="ignored",
    fields=(
        Field(
            name="effort",
            use="used",
            kinds=("text",),
            note="`none` and `minimal` turn thinking off; `low`, `medium`, `high`, `xhigh` and `max` turn it on",
        ),
        Field(name="summary", use="accepted", kinds=("text",), note="The whole reasoning is the summary"),
        Field(name="generate_summary", use="accepted", kinds=("text",), note="The older name of `summary`"),
        Field(name="context", use="accepted", note="Reasoning that is sent back is always read"),
    ),
)

TEXT = FieldTable(
    title="`text`",
    code="unsupported_field",
    fields=(
        Field(name="verbosity", use="accepted", kinds=("text",), note="Ask for short or long answers in words"),
        Field(
            name="format",
            use="used",
            kinds=("object",),
            note='Only `{"type": "text"}`; output that must fit a schema is refused',
        ),
    ),
)

FUNCTION_TOOL = FieldTable(
    title='Tool `{"type": "function"}`',
    unknown="skipped",
    fields=(
        Field(name="type", use="used", kinds=("text",), note="`function`"),
        Field(name="name", use="used", kinds=("text",), note="Required"),
        Field(name="description", use="used", kinds=("text",), note="What it does"),
        Field(name="parameters", use="used", kinds=("object",), note="JSON schema of its arguments"),
        Field(
            name="strict",
            use="accepted",
            only=(False,),
            code="unsupported_tool",
            note="arguments are not forced to fit their schema; leave it out and check them",
        ),
    ),
)

NAMESPACE_TOOL = FieldTable(
    title='Tool `{"type": "namespace"}`',
    unknown="skipped",
    fields=(
        Field(name="type", use="used", kinds=("text",), note="`namespace`"),
        Field(name="name", use="used", kinds=("text",), note="Required; without a dot"),
        Field(name="description", use="used", kinds=("text",), note="Put before each member's own description"),
        Field(name="tools", use="used", kinds=("array",), note="Functions; the model sees each as `namespace.name`"),
    ),
)

CUSTOM_TOOL = FieldTable(
    title='Tool `{"type": "custom"}`',
    unknown="skipped",
    fields=(
        Field(name="type", use="used", kinds=("text",), note="`custom`: a freeform tool, called with one text"),
        Field(name="name", use="used", kinds=("text",), note="Required"),
        Field(name="description", use="used", kinds=("text",), note="What it does"),
        Field(name="format", use="used", kinds=("object",), note="A grammar is shown to the model, not enforced"),
    ),
)

MESSAGE_ITEM = FieldTable(
    title="Input item `message`",
    unknown="skipped",
    fields=(
        Field(name="type", use="used", kinds=("text",), note="`message`; may be left out"),
        Field(name="role", use="used", kinds=("text",), note="`system`, `developer`, `user` or `assistant`; required"),
        Field(
            name="content",
            use="used",
            kinds=("text", "array"),
            note="Text, or parts: `input_text`, `output_text`; `input_image` needs vision; others are refused",
        ),
        Field(name="id", use="accepted", note="Ids of items need not come back"),
        Field(name="status", use="accepted", note="Not needed"),
        Field(name="phase", use="accepted", note="A field of Codex"),
    ),
)

REASONING_ITEM = FieldTable(
    title="Input item `reasoning`",
    unknown="skipped",
    fields=(
        Field(name="type", use="used", kinds=("text",), note="`reasoning`"),
        Field(name="summary", use="used", kinds=("array",), note="The reasoning that was returned here"),
        Field(name="content", use="used", kinds=("array",), note="Read when there is no summary"),
        Field(
            name="encrypted_content",
            use="refused",
            code="unsupported_item",
            note="it is another provider's encrypted reasoning, which only that provider can read",
        ),
        Field(name="id", use="accepted", note="Ids of items need not come back"),
        Field(name="status", use="accepted", note="Not needed"),
    ),
)

CALL_ITEM = FieldTable(
    title="Input item `function_call`",
    unknown="skipped",
    fields=(
        Field(name="type", use="used", kinds=("text",), note="`function_call`"),
        Field(name="call_id", use="used", kinds=("text",), note="Required"),
        Field(name="name", use="used", kinds=("text",), note="Required"),
        Field(name="namespace", use="used", kinds=("text",), note="The namespace it was reported with"),
        Field(name="arguments", use="used", kinds=("text",), note="A JSON object as text; required"),
        Field(name="id", use="accepted", note="Ids of items need not come back"),
        Field(name="status", use="accepted", note="Not needed"),
    ),
)

CUSTOM_CALL_ITEM = FieldTable(
    title="Input item `custom_tool_call`",
    unknown="skipped",
    fields=(
        Field(name="type", use="used", kinds=("text",), note="`custom_tool_call`"),
        Field(name="call_id", use="used", kinds=("text",), note="Required"),
        Field(name="name", use="used", kinds=("text",), note="Required"),
        Field(name="input", use="used", kinds=("text",), note="The text it was called with; required"),
        Field(name="id", use="accepted", note="Ids of items need not come back"),
        Field(name="status", use="accepted", note="Not needed"),
    ),
)

OUTPUT_ITEM = FieldTable(
    title="Input items `function_call_output` and `custom_tool_call_output`",
    unknown="skipped",
    fields=(
        Field(name="type", use="used", kinds=("text",), note="One of the two"),
        Field(name="call_id", use="used", kinds=("text",), note="Required; outputs may come in any order"),
        Field(
            name="output",
            use="used",
            kinds=("text", "array"),
            note="Text, or parts as in a message; encrypted output is refused; required",
        ),
        Field(name="name", use="accepted", kinds=("text",), note="The call has it"),
        Field(name="id", use="accepted", note="Ids of items need not come back"),
        Field(name="status", use="accepted", note="Not needed"),
    ),
)

TABLES = (
    REQUEST,
    REASONING,
    TEXT,
    FUNCTION_TOOL,
    NAMESPACE_TOOL,
    CUSTOM_TOOL,
    MESSAGE_ITEM,
    REASONING_ITEM,
    CALL_ITEM,
    CUSTOM_CALL_ITEM,
    OUTPUT_ITEM,
)
"""Every table, in the order of the documentation."""
