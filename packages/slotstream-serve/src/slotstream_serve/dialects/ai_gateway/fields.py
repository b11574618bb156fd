"""Every field of the gateway protocol: the parser holds requests to these tables, and the documentation shows them."""

from slotstream_serve.dialects.fields import Field, FieldTable

REQUEST = FieldTable(
    title="Request",
    code="unsupported_field",
    fields=(
        Field(name="prompt", use="used", kinds=("array",), note="The conversation; required"),
        Field(name="tools", use="used", kinds=("array",), note="See below"),
        Field(name="toolChoice", use="used", kinds=("object",), note="`auto`, `none`, `required`, or `tool` by name"),
        Field(name="maxOutputTokens", use="used", kinds=("integer",), least=1, note="Output budget in tokens"),
        Field(name="temperature", use="used", kinds=("number",), note="Brought into the supported range"),
        Field(name="topP", use="used", kinds=("number",), note="Brought into the supported range"),
        Field(name="topK", use="used", kinds=("integer",), note="Brought into the supported range"),
        Field(name="presencePenalty", use="used", kinds=("number",), note="As given"),
        Field(name="seed", use="used", kinds=("integer",), note="As given"),
        Field(name="stopSequences", use="used", kinds=("array",), note="Texts that end the answer"),
        Field(
            name="reasoning",
            use="used",
            kinds=("text",),
            note="`none` and `minimal` turn thinking off; `low`, `medium`, `high`, `xhigh` and `max` turn it on; "
            "`provider-default` is off",
        ),
        Field(
            name="frequencyPenalty",
            use="accepted",
            only=(0,),
            code="frequency_penalty_unsupported",
            note="the model has a presence penalty only",
        ),
        Field(
            name="responseFormat",
            use="used",
            kinds=("object",),
            note='Only `{"type": "text"}`; output that must fit a schema is refused',
        ),
        Field(name="providerOptions", use="accepted", kinds=("object",), note="Options of hosted providers"),
        Field(name="headers", use="accepted", kinds=("object",), note="Already sent as headers"),
        Field(name="includeRawChunks", use="accepted", kinds=("boolean",), note="There are no raw chunks"),
        Field(name="abortSignal", use="accepted", note="Close the connection to stop"),
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
            note="`function`; tools that a hosted provider runs (`provider`, `provider-defined`) are left out",
        ),
        Field(name="name", use="used", kinds=("text",), note="Required"),
        Field(name="description", use="used", kinds=("text",), note="What it does"),
        Field(name="inputSchema", use="used", kinds=("object",), note="JSON schema of its input"),
        Field(name="inputExamples", use="accepted", kinds=("array",), note="The model is not shown them"),
        Field(name="strict", use="accepted", kinds=("boolean",), note="Calls are not forced to fit their schema"),
        Field(name="providerOptions", use="accepted", kinds=("object",), note="Options of hosted providers"),
    ),
)

MESSAGE = FieldTable(
    title="Message",
    unknown="skipped",
    fields=(
        Field(
            name="role",
            use="used",
            kinds=("text",),
            note="`system` (before the conversation only), `user`, `assistant` or `tool`; required",
        ),
        Field(
            name="content",
            use="used",
            kinds=("text", "array"),
            note="Text of a system message, parts of the others; required",
        ),
        Field(name="providerOptions", use="accepted", note="Options of hosted providers"),
    ),
)

PART = FieldTable(
    title="Message parts",
    unknown="skipped",
    fields=(
        Field(
            name="type",
            use="used",
            kinds=("text",),
            note="User: `text`, `file`; assistant: `text`, `reasoning`, `tool-call`; tool: `tool-result`; others are "
            "refused",
        ),
        Field(name="text", use="used", kinds=("text",), note="Of `text` and `reasoning`"),
        Field(name="data", use="used", note="Of `file`: an inline image, where the model sees"),
        Field(name="mediaType", use="used", kinds=("text",), note="Of `file`: `image/*`; others are refused"),
        Field(name="toolCallId", use="used", kinds=("text",), note="Of `tool-call` and `tool-result`"),
        Field(name="toolName", use="used", kinds=("text",), note="Of `tool-call` and `tool-result`"),
        Field(name="input", use="used", kinds=("object", "text"), note="Of `tool-call`: an object, or one as text"),
        Field(
            name="output",
            use="used",
            kinds=("object",),
            note="Of `tool-result`: `text`, `error-text`, `json`, `error-json`, `execution-denied` or `content` (text)",
        ),
        Field(
            name="providerExecuted",
            use="accepted",
            only=(False,),
            code="unsupported_part",
            note="no provider runs tools here",
        ),
        Field(name="filename", use="accepted", kinds=("text",), note="The model is not shown it"),
        Field(name="providerOptions", use="accepted", note="Options of hosted providers"),
    ),
)

TABLES = (REQUEST, TOOL, MESSAGE, PART)
"""Every table, in the order of the documentation."""
