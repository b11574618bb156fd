"""Every field of Chat Completions requests."""

from slotstream_serve.dialects.fields import Field, FieldTable

REQUEST = FieldTable(
    title="Request",
    code="unsupported_field",
    fields=(
        Field(name="model", use="used", note="Required; a name of the served model", kinds=("text",)),
        Field(name="messages", use="used", note="Required; the conversation, oldest first", kinds=("array",)),
        Field(
            name="stream", use="used", note="Server-sent events instead of one body; default false", kinds=("boolean",)
        ),
        Field(name="stream_options", use="used", note="See below", kinds=("object",)),
        Field(name="temperature", use="used", note="Default 0.7; 0.2 with tools; 1 when thinking", kinds=("number",)),
        Field(name="top_p", use="used", note="Default 0.8; 0.9 with tools; 0.95 when thinking", kinds=("number",)),
        Field(name="top_k", use="used", note="Extension; default 20", kinds=("integer",)),
        Field(name="min_p", use="used", note="Extension; default 0", kinds=("number",)),
        Field(
            name="presence_penalty",
            use="used",
            note="Default 1.5; 0 with tools and when thinking",
            kinds=("number",),
        ),
        Field(name="seed", use="used", note="Default: another one for each request", kinds=("integer",)),
        Field(name="stop", use="used", note="Texts that end the answer, at most 64", kinds=("text", "array")),
        Field(
            name="max_tokens",
            use="used",
            note="Most tokens of the reply, thinking included; default a quarter of the window, 256 to 8,192",
            kinds=("integer",),
            least=1,
        ),
        Field(
            name="max_completion_tokens",
            use="used",
            note="The same as `max_tokens`; when both are given they must agree",
            kinds=("integer",),
            least=1,
        ),
        Field(name="tools", use="used", note="Functions the model may call", kinds=("array",)),
        Field(
            name="tool_choice",
            use="used",
            note='`"auto"` (default), `"none"`, `"required"`, or `{"type": "function", "function": {"name": ...}}`',
            kinds=("text", "object"),
        ),
        Field(
            name="parallel_tool_calls",
            use="used",
            note="`false` ends the reply after its first complete call; default true",
            kinds=("boolean",),
        ),
        Field(
            name="reasoning_effort",
            use="used",
            note="`none` and `minimal` do not think; `low`, `medium`, `high`, `xhigh` and `max` do",
            kinds=("text",),
        ),
        Field(
            name="think",
            use="used",
            note="Extension; thinks or not, and must agree with `reasoning_effort`; default false",
            kinds=("boolean",),
        ),
        Field(name="options", use="used", note="Extension; see below", kinds=("object",)),
        Field(name="n", use="accepted", note="one choice is made", kinds=("number",), only=(1,)),
        Field(name="frequency_penalty", use="accepted", note="there is no such penalty", kinds=("number",), only=(0,)),
        Field(
            name="logprobs", use="accepted", note="probabilities are not reported", kinds=("boolean",), only=(False,)
        ),
        Field(name="logit_bias", use="accepted", note="there is no bias", kinds=("object",), only=({},)),
        Field(
            name="response_format",
            use="accepted",
            note="replies are not held to a JSON schema",
            kinds=("object",),
            only=({"type": "text"},),
        ),
        Field(name="modalities", use="accepted", note="replies are text", kinds=("array",), only=(["text"],)),
        Field(
            name="store",
            use="accepted",
            note="no completion is kept to fetch later",
            kinds=("boolean",),
            only=(False,),
        ),
        Field(name="metadata", use="accepted", note="An object of texts", kinds=("object",)),
        Field(name="user", use="accepted", note="Nothing is billed", kinds=("text",)),
        Field(name="prompt_cache_key", use="accepted", note="Prompts are reused without it", kinds=("text",)),
        Field(
            name="prompt_cache_retention",
            use="used",
            kinds=("text",),
            note="`in_memory` keeps the conversation off the disk; prompts are reused without it",
        ),
        Field(name="safety_identifier", use="accepted", note="Nothing is recorded", kinds=("text",)),
        Field(name="service_tier", use="accepted", note="There is one tier", kinds=("text",)),
        Field(name="top_logprobs", use="refused", note="probabilities are not reported"),
        Field(name="functions", use="refused", note="use `tools`"),
        Field(name="function_call", use="refused", note="use `tool_choice`"),
        Field(name="audio", use="refused", note="replies are text"),
        Field(name="prediction", use="refused", note="replies cannot be predicted by the client"),
        Field(name="verbosity", use="refused", note="say in the prompt how long the answer should be"),
        Field(name="web_search_options", use="refused", note="the server searches nothing"),
    ),
)

STREAM_OPTIONS = FieldTable(
    title="`stream_options`",
    code="unsupported_field",
    fields=(
        Field(
            name="include_usage",
            use="used",
            note="Token counts in the last chunk; default false",
            kinds=("boolean",),
        ),
        Field(name="include_obfuscation", use="accepted", note="nothing is added", kinds=("boolean",), only=(False,)),
    ),
)

OPTIONS = FieldTable(
    title="`options`",
    code="unsupported_field",
    fields=(
        Field(
            name="num_ctx",
            use="used",
            note="A smaller window for prompt and reply together, at most the served one",
            kinds=("integer",),
            least=1,
        ),
    ),
)

BOOKKEEPING = (
    Field(name="name", use="accepted", note="Speakers are not told apart", kinds=("text",)),
    Field(name="effect_disposition", use="accepted", note="Kept by the Hermes agent for itself"),
    Field(name="display_kind", use="accepted", note="Kept by the Hermes agent for itself"),
    Field(name="display_metadata", use="accepted", note="Kept by the Hermes agent for itself"),
)
ROLE = Field(
    name="role", use="used", note="Required; `system`, `developer`, `user`, `assistant` or `tool`", kinds=("text",)
)

INSTRUCTIONS = FieldTable(
    title="`system` and `developer` messages",
    code="unsupported_field",
    fields=(
        ROLE,
        Field(
            name="content",
            use="used",
            note="Required; text or text parts; all messages of these roles come first and are joined",
            kinds=("text", "array"),
        ),
        *BOOKKEEPING,
    ),
)

USER = FieldTable(
    title="`user` messages",
    code="unsupported_field",
    fields=(
        ROLE,
        Field(name="content", use="used", note="Required; text or an array of parts", kinds=("text", "array")),
        *BOOKKEEPING,
    ),
)

ASSISTANT = FieldTable(
    title="`assistant` messages",
    code="unsupported_field",
    fields=(
        ROLE,
        Field(name="content", use="used", note="Text or text parts; may be null with calls", kinds=("text", "array")),
        Field(name="reasoning_content", use="used", note="The reasoning of that turn", kinds=("text",)),
        Field(name="tool_calls", use="used", note="The calls of that turn", kinds=("array",)),
        Field(
            name="refusal", use="accepted", note="Other services' refusals are not part of the prompt", kinds=("text",)
        ),
        Field(name="annotations", use="accepted", note="Other services' annotations", kinds=("array",)),
        Field(name="parsed", use="accepted", note="Added to a reply by the stream helpers of OpenAI's clients"),
        Field(name="audio", use="refused", note="replies are text"),
        Field(name="function_call", use="refused", note="use `tool_calls`"),
        *BOOKKEEPING,
    ),
)

TOOL_RESULT = FieldTable(
    title="`tool` messages",
    code="unsupported_field",
    fields=(
        ROLE,
        Field(name="content", use="used", note="Required; text or text parts", kinds=("text", "array")),
        Field(
            name="tool_call_id",
            use="used",
            note="Required; every call gets one result before the next message, in any order",
            kinds=("text",),
        ),
        Field(name="name", use="used", note="The tool's name; must be the call's", kinds=("text",)),
        *BOOKKEEPING[1:],
    ),
)

CALL = FieldTable(
    title="Entries of `tool_calls`",
    code="unsupported_field",
    fields=(
        Field(name="id", use="used", note="Required; pairs the call with its result", kinds=("text",)),
        Field(name="type", use="accepted", note="there are only functions", kinds=("text",), only=("function",)),
        Field(name="function", use="used", note="Required; `name` and `arguments`", kinds=("object",)),
        Field(name="index", use="accepted", note="Calls are in the array's order", kinds=("integer",)),
    ),
)

CALL_FUNCTION = FieldTable(
    title="`function` of a call",
    code="unsupported_field",
    fields=(
        Field(name="name", use="used", note="Required", kinds=("text",)),
        Field(name="arguments", use="used", note="A JSON object, as text", kinds=("text",)),
        Field(name="parsed_arguments", use="accepted", note="Added by the stream helpers of OpenAI's clients"),
    ),
)

TOOL = FieldTable(
    title="Entries of `tools`",
    code="unsupported_field",
    fields=(
        Field(name="type", use="used", note="Required; `function`", kinds=("text",), only=("function",)),
        Field(name="function", use="used", note="Required; the function", kinds=("object",)),
    ),
)

FUNCTION = FieldTable(
    title="`function` of a tool",
    code="unsupported_field",
    fields=(
        Field(
            name="name", use="used", note="Required; 1 to 128 characters without spaces, `<` and `>`", kinds=("text",)
        ),
        Field(name="description", use="used", note="What it does", kinds=("text",)),
        Field(name="parameters", use="used", note="JSON schema of its arguments object", kinds=("object",)),
        Field(
            name="strict",
            use="accepted",
            note="arguments are not held to the schema; check them before you use them",
            kinds=("boolean",),
            only=(False,),
        ),
    ),
)

PART = FieldTable(
    title="Parts of `content`",
    code="unsupported_field",
    fields=(
        Field(
            name="type",
            use="used",
            note="Required; `text` or `input_text` (for the assistant also `output_text`); "
            "images (`image_url`, `image`, `input_image`) are refused",
            kinds=("text",),
        ),
        Field(
            name="text",
            use="used",
            note="Required; parts are joined by line breaks, the assistant's without",
            kinds=("text",),
        ),
        Field(name="annotations", use="accepted", note="Other services' annotations", kinds=("array",)),
    ),
)

TABLES = (
    REQUEST,
    STREAM_OPTIONS,
    OPTIONS,
    INSTRUCTIONS,
    USER,
    ASSISTANT,
    TOOL_RESULT,
    PART,
    CALL,
    CALL_FUNCTION,
    TOOL,
    FUNCTION,
)
"""Every table, in the order of the documentation."""
