"""Frames whose constant part is encoded once say what encoding each of them would."""

import json

from hypothesis import given
from hypothesis import strategies as st

from slotstream_serve.dialects.text_frames import NUMBER, TEXT, NumberedFrames, TextFrames, quoted_text
from slotstream_serve.dialects.tools import json_text

texts = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\\n\r\u2028\u2029\x85\0'))


@given(texts)
def test_a_quoted_text_is_the_json_of_the_text(text: str) -> None:
    assert quoted_text(text) == json_text(text)
    assert json.loads(quoted_text(text)) == text


@given(texts, st.booleans())
def test_a_text_frame_is_the_json_of_its_value(text: str, sort_keys: bool) -> None:
    frames = TextFrames({"b": {"deep": [TEXT]}, "a": 'quote " and \u2028'}, event="delta", sort_keys=sort_keys)
    frame = frames.frame(text)
    assert frame.data == json_text({"b": {"deep": [text]}, "a": 'quote " and \u2028'}, sort_keys=sort_keys)
    assert (frame.event, frame.comment) == ("delta", None)


@given(texts, st.integers(0, 10**9))
def test_a_numbered_frame_is_the_json_of_its_value(text: str, number: int) -> None:
    frames = NumberedFrames({"number": NUMBER, "delta": TEXT, "type": "x"}, event="x")
    assert frames.frame(text, number).data == json_text({"delta": text, "number": number, "type": "x"}, sort_keys=True)
