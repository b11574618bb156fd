"""Whatever JSON object comes, a dialect understands it or refuses it in its own shape; nothing else happens."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_serve.dialects.base import Dialect
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.errors import Refused
from tests.serve.replies import context


def words(text: str) -> list[str]:
    return text.split()


CASES = [(dialect, path) for dialect in all_dialects() for path in dialect.paths]
NAMES = words(
    "model messages role content type text tools function name parameters arguments tool_calls id tool_call_id "
    "tool_name thinking think options num_ctx stop seed stream n temperature top_k max_tokens prompt input "
    "images image_url reasoning reasoning_effort tool_choice stream_options include_usage metadata format store "
    "system instructions source input_schema toolName toolCallId output effort summary encrypted_content"
)
TEXTS = words(
    "tiny system developer user assistant tool function text input_text image_url auto none required low high "
    "tool_use tool_result function_call function_call_output reasoning message custom thinking {} [] x"
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.sampled_from([10**400, -1e308, 0.5])
    | st.sampled_from(["", "\ud7ff", "\U0001f600", *TEXTS])
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
turns = st.lists(
    st.dictionaries(
        st.sampled_from(["content", "tool_calls", "tool_call_id", "name", "images"]), values, max_size=3
    ).flatmap(
        lambda fields: st.sampled_from(["system", "user", "assistant", "tool"]).map(
            lambda role: {**fields, "role": role}
        )
    ),
    max_size=4,
)
bodies = st.builds(
    lambda fields, messages: {"model": "tiny", **fields, **({"messages": messages} if messages else {})},
    st.dictionaries(st.sampled_from(NAMES), values, max_size=4),
    turns,
)


@pytest.mark.parametrize(("dialect", "path"), CASES, ids=[f"{dialect.name} {path}" for dialect, path in CASES])
@settings(max_examples=100)
@given(body=bodies)
def test_any_object_is_understood_or_refused(dialect: Dialect, path: str, body: dict[str, Any]) -> None:
    failure = None
    try:
        parsed = dialect.parse(body, context(path))
    except Refused as refusal:
        failure = refusal.failure
    if failure is None:
        assert (parsed.generation is None) == (parsed.immediate is not None)
    else:
        shaped = dialect.error_body(failure)
        assert 400 <= failure.http_status < 500
        assert json.loads(json.dumps(shaped)) == shaped
        assert len(failure.message) < 2000
