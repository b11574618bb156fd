"""Field tables and their reader."""

from typing import Any

import pytest

from slotstream_serve.dialects.fields import Field, FieldReader, FieldTable, same_json
from slotstream_serve.errors import Refused

TABLE = FieldTable(
    title="Thing",
    fields=(
        Field(name="text", use="used", note="A text", kinds=("text",)),
        Field(name="flag", use="used", note="A flag", kinds=("boolean",)),
        Field(name="amount", use="used", note="An amount", kinds=("number",)),
        Field(name="count", use="used", note="A count", kinds=("integer",), least=1),
        Field(name="list", use="used", note="A list", kinds=("array", "text")),
        Field(name="map", use="used", note="A map", kinds=("object",)),
        Field(name="n", use="accepted", note="one choice is made", kinds=("integer",), only=(1,)),
        Field(name="store", use="accepted", note="nothing is kept", only=(False,), code="no_store"),
        Field(name="banned", use="refused", note="it needs `another` model"),
    ),
    code="unsupported",
)


def read(values: dict[str, Any], path: str = "") -> FieldReader:
    return FieldReader(values, TABLE, path=path)


def refusal(values: dict[str, Any], path: str = "") -> Refused:
    with pytest.raises(Refused) as caught:
        read(values, path)
    return caught.value


def test_values_come_back_with_their_types() -> None:
    fields = read({"text": "a", "flag": False, "amount": 2, "count": 3.0, "list": [1], "map": {"k": None}, "n": 1})
    assert fields.text("text") == "a"
    assert fields.boolean("flag") is False
    assert fields.number("amount") == 2.0
    assert (fields.integer("count"), type(fields.integer("count"))) == (3, int)
    assert fields.array("list") == [1]
    assert fields.object("map") == {"k": None}


def test_null_and_absent_are_both_unset_for_every_field() -> None:
    fields = read({field.name: None for field in TABLE.fields})
    assert not any(fields.has(field.name) for field in TABLE.fields)
    assert fields.text("text") is None
    assert fields.integer("count") is None
    assert read({}).boolean("flag") is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": 1}, "thing.text must be text, not a number"),
        ({"flag": 1}, "thing.flag must be true or false, not a number"),
        ({"flag": "true"}, "thing.flag must be true or false, not text"),
        ({"amount": True}, "thing.amount must be a number, not a boolean"),
        ({"count": True}, "thing.count must be a whole number, not a boolean"),
        ({"count": 1.5}, "thing.count must be a whole number, not a number"),
        ({"count": 0}, "thing.count must be at least 1"),
        ({"list": {}}, "thing.list must be an array or text, not an object"),
        ({"map": []}, "thing.map must be an object, not an array"),
        ({"amount": float("inf")}, "thing.amount is too large a number"),
        ({"count": 10**400}, "thing.count is too large a number"),
        ({"n": 2}, "thing.n may only be 1 here: one choice is made"),
        ({"n": True}, "thing.n must be a whole number, not a boolean"),
        ({"store": True}, "thing.store may only be false here: nothing is kept"),
        ({"store": 0}, "thing.store may only be false here: nothing is kept"),
        ({"banned": 0}, "thing.banned is not supported: it needs another model"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(values: dict[str, Any], message: str) -> None:
    error = refusal(values, "thing")
    assert str(error) == message
    assert error.failure.param == f"thing.{next(iter(values))}"


def test_unknown_fields_are_refused_with_their_paths_and_what_is_known() -> None:
    error = refusal({"zoo": None, "ape": 1}, "options")
    assert error.failure.dialect_code == "unsupported"
    assert "unknown fields: options.ape, options.zoo; known here: text, flag," in str(error)
    assert "banned" not in str(error)


def test_a_table_may_ignore_unknown_fields_and_report_them() -> None:
    table = FieldTable(title="Loose", fields=TABLE.fields, unknown="ignored")
    assert FieldReader({"b": 1, "a": 2, "text": "x"}, table).ignored == ("a", "b")


def test_refusals_carry_the_fields_own_code_first() -> None:
    assert refusal({"store": True}).failure.dialect_code == "no_store"
    assert refusal({"banned": 1}).failure.dialect_code == "unsupported"


def test_a_required_text_must_be_there() -> None:
    with pytest.raises(Refused, match="m.0.text is required"):
        read({"text": None}, "m.0").required_text("text")


def test_reading_a_field_without_an_entry_is_a_mistake_of_the_program() -> None:
    with pytest.raises(KeyError):
        read({}).text("other")


def test_equal_json_values_have_equal_types() -> None:
    assert same_json(1.0, 1)
    assert not same_json(True, 1)
    assert not same_json(0, False)
    assert same_json({}, {})
