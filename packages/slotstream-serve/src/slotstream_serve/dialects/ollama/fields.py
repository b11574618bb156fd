"""Every field of Ollama requests."""

from slotstream_serve.dialects.fields import Field, FieldTable

MODEL = Field(name="model", use="used", note="Required; a name of the served model", kinds=("text",))
STREAM = Field(name="stream", use="used", note="One JSON object a line; default true", kinds=("boolean",))
THINK = Field(
    name="think",
    use="used",
    note="Reasons before the answer; default false; named levels are refused",
    kinds=("boolean",),
)
OPTIONS_FIELD = Field(name="options", use="used", note="See below", kinds=("object",))
KEEP_ALIVE = Field(name="keep_alive", use="accepted", note="The model stays loaded", kinds=("text", "number"))
FORMAT = Field(
    name="format",
    use="accepted",
    note="replies are not held to a JSON schema; ask for JSON in the prompt and check it",
    only=("",),
)
NO_PROBABILITIES = (
    Field(name="logprobs", use="accepted", note="probabilities are not reported", kinds=("boolean",), only=(False,)),
    Field(name="top_logprobs", use="accepted", note="probabilities are not reported", kinds=("number",), only=(0,)),
)

CHAT = FieldTable(
    title="`POST /api/chat`",
    fields=(
        MODEL,
        Field(
            name="messages",
            use="used",
            note="The conversation, oldest first; none asks whether the model is loaded",
            kinds=("array",),
        ),
        Field(name="tools", use="used", note="Functions the model may call", kinds=("array",)),
        STREAM,
        THINK,
        OPTIONS_FIELD,
        KEEP_ALIVE,
        *NO_PROBABILITIES,
        FORMAT,
    ),
)

GENERATE = FieldTable(
    title="`POST /api/generate`",
    fields=(
        MODEL,
        Field(name="prompt", use="used", note="Empty asks whether the model is loaded", kinds=("text",)),
        Field(name="system", use="used", note="Instructions before the prompt", kinds=("text",)),
        Field(
            name="raw",
            use="used",
            note="Sends the prompt without the chat template; not with a system prompt or thinking; default false",
            kinds=("boolean",),
        ),
        STREAM,
        THINK,
        OPTIONS_FIELD,
        KEEP_ALIVE,
        Field(name="suffix", use="accepted", note="text cannot be filled in", kinds=("text",), only=("",)),
        Field(
            name="template", use="accepted", note="the checkpoint's own template is used", kinds=("text",), only=("",)
        ),
        Field(name="images", use="accepted", note="this server reads text only", kinds=("array",), only=([],)),
        *NO_PROBABILITIES,
        FORMAT,
        Field(name="tools", use="refused", note="use `/api/chat` or `/v1/chat/completions`"),
        Field(name="messages", use="refused", note="use `/api/chat`"),
        Field(name="context", use="refused", note="send the conversation to `/api/chat` instead"),
    ),
)

OPTIONS = FieldTable(
    title="`options`",
    fields=(
        Field(name="temperature", use="used", note="Default 0.7; 0.2 with tools; 1 when thinking", kinds=("number",)),
        Field(name="top_p", use="used", note="Default 0.8; 0.9 with tools; 0.95 when thinking", kinds=("number",)),
        Field(name="top_k", use="used", note="Default 20", kinds=("integer",)),
        Field(name="min_p", use="used", note="Default 0", kinds=("number",)),
        Field(
            name="presence_penalty", use="used", note="Default 1.5; 0 with tools and when thinking", kinds=("number",)
        ),
        Field(
            name="num_predict",
            use="used",
            note="Most tokens of the reply; default 512; 0 or less takes what the window leaves",
            kinds=("integer",),
        ),
        Field(name="seed", use="used", note="Default: another one for each request", kinds=("integer",)),
        Field(name="stop", use="used", note="Texts that end the answer, at most 64", kinds=("text", "array")),
        Field(
            name="num_ctx",
            use="used",
            note="A smaller window for prompt and reply together, at most the served one",
            kinds=("integer",),
            least=1,
        ),
        Field(name="repeat_penalty", use="accepted", note="there is no such penalty", kinds=("number",), only=(1,)),
        Field(name="frequency_penalty", use="accepted", note="there is no such penalty", kinds=("number",), only=(0,)),
    ),
)

ROLE = Field(name="role", use="used", note="Required; `system`, `user`, `assistant` or `tool`", kinds=("text",))
IMAGES = Field(name="images", use="accepted", note="this server reads text only", kinds=("array",), only=([],))

MESSAGE = FieldTable(
    title="`system` and `user` messages",
    fields=(
        ROLE,
        Field(name="content", use="used", note="Required; text or text parts", kinds=("text", "array")),
        IMAGES,
    ),
)

ASSISTANT = FieldTable(
    title="`assistant` messages",
    fields=(
        ROLE,
        Field(
            name="content", use="used", note="Text or text parts; may be left out with calls", kinds=("text", "array")
        ),
        Field(name="thinking", use="used", note="The reasoning of that turn", kinds=("text",)),
        Field(name="tool_calls", use="used", note="The calls of that turn", kinds=("array",)),
        IMAGES,
    ),
)

TOOL_RESULT = FieldTable(
    title="`tool` messages",
    fields=(
        ROLE,
        Field(name="content", use="used", note="Required; text or text parts", kinds=("text", "array")),
        Field(name="tool_name", use="used", note="The tool whose first open call this answers", kinds=("text",)),
        Field(name="name", use="used", note="The same as `tool_name`", kinds=("text",)),
        Field(
            name="tool_call_id",
            use="used",
            note="The call this answers; without it and a name, the first open one",
            kinds=("text",),
        ),
        IMAGES,
    ),
)

PART = FieldTable(
    title="Parts of `content`",
    fields=(
        Field(
            name="type", use="used", note="Required; `text`; images (`image_url`, `image`) are refused", kinds=("text",)
        ),
        Field(name="text", use="used", note="Required; parts are joined by line breaks", kinds=("text",)),
    ),
)

CALL = FieldTable(
    title="Entries of `tool_calls`",
    fields=(
        Field(name="id", use="used", note="Pairs the call with its result", kinds=("text",)),
        Field(name="type", use="accepted", note="there are only functions", kinds=("text",), only=("function",)),
        Field(name="function", use="used", note="Required; `name` and `arguments`", kinds=("object",)),
    ),
)

CALL_FUNCTION = FieldTable(
    title="`function` of a call",
    fields=(
        Field(name="name", use="used", note="Required", kinds=("text",)),
        Field(name="arguments", use="used", note="An object, or one as text", kinds=("object", "text")),
        Field(name="index", use="accepted", note="Calls are in the array's order", kinds=("integer",)),
    ),
)

TOOL = FieldTable(
    title="Entries of `tools`",
    fields=(
        Field(name="type", use="used", note="`function`, also when left out", kinds=("text",), only=("function",)),
        Field(name="function", use="used", note="Required; the function", kinds=("object",)),
    ),
)

FUNCTION = FieldTable(
    title="`function` of a tool",
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

SHOW = FieldTable(
    title="`POST /api/show`",
    fields=(
        Field(name="model", use="used", note="A name of the served model", kinds=("text",)),
        Field(name="name", use="used", note="An older name of `model`, for when that is empty", kinds=("text",)),
        Field(name="verbose", use="accepted", note="There is nothing more to show", kinds=("boolean",)),
        Field(name="system", use="accepted", note="instructions belong to a chat", kinds=("text",), only=("",)),
        Field(
            name="template", use="accepted", note="the checkpoint's own template is used", kinds=("text",), only=("",)
        ),
        Field(name="options", use="accepted", note="options belong to a chat", kinds=("object",), only=({},)),
    ),
)

TABLES = (
    CHAT,
    GENERATE,
    OPTIONS,
    MESSAGE,
    ASSISTANT,
    TOOL_RESULT,
    PART,
    CALL,
    CALL_FUNCTION,
    TOOL,
    FUNCTION,
    SHOW,
)
"""Every table, in the order of the documentation."""
