"""The shape of a training document."""

import pytest

from tools.demo_model.data.documents import (
    assistant,
    chat_document,
    check_document,
    system,
    text_document,
    tool_call,
    tool_result,
    user,
)
from tools.demo_model.data.errors import DocumentError


def test_a_chat_with_a_tool_result_is_accepted() -> None:
    check_document(
        chat_document(
            "example",
            [
                system("Be brief."),
                user("What is in notes.txt?"),
                assistant("", calls=[tool_call("read_file", {"path": "notes.txt"})]),
                tool_result("milk"),
                assistant("It says milk."),
            ],
        )
    )


def test_a_chat_that_ends_with_the_user_is_refused() -> None:
    with pytest.raises(DocumentError, match="must end with an assistant turn"):
        check_document(chat_document("example", [user("Hello")]))


def test_two_user_turns_in_a_row_are_refused() -> None:
    with pytest.raises(DocumentError, match="message 1"):
        check_document(chat_document("example", [user("Hello"), user("Hello?"), assistant("Hi")]))


def test_a_tool_result_without_a_call_is_refused() -> None:
    with pytest.raises(DocumentError, match="calls none"):
        check_document(chat_document("example", [user("a"), assistant("b"), tool_result("c"), assistant("d")]))


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(DocumentError, match="is empty"):
        check_document(text_document("example", " \n"))
