"""Schemathesis against the server's OpenAPI document: it never fails, and always answers in time.

The document says that bodies are objects; the field tables that the dialects are documented with say which.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.schemas import OpenApiSchema

from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.dialects.fields import Field, FieldTable
from slotstream_serve.testing import ScriptedEngine
from tests.serve.conftest import PATIENCE_S, live_server
from tools.docs.api_pages import DIALECTS

MODEL = "tiny:4bit"
TURN = {
    "type": "object",
    "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": {"type": "string", "maxLength": 50}},
    "required": ["role", "content"],
}
JSON_TYPES = {"text": "string"}
effort = settings(max_examples=12, suppress_health_check=list(HealthCheck))
NOT_OFFERED = {"/api/pull", "/api/create"}  # answered 501 by design


def body_schema(table: FieldTable) -> dict[str, Any]:
    """Return a table as a JSON schema, with the served model's name."""
    properties = {field.name: field_schema(field) for field in table.fields if field.use != "refused"}
    if "model" in properties:
        properties["model"] = {"const": MODEL}
    if "messages" in properties:
        properties["messages"] = {"type": "array", "items": TURN, "minItems": 1}
    required = [name for name in ("model", "messages", "max_tokens") if name in properties]
    few = {"additionalProperties": False, "maxProperties": len(required) + 2}
    return {"type": "object", "properties": properties, "required": required, **few}


def field_schema(field: Field) -> dict[str, Any]:
    """Return what a field's values look like."""
    if field.only:
        return {"enum": list(field.only)}
    return {"type": [JSON_TYPES.get(kind, kind) for kind in field.kinds]} if field.kinds else {}


def described(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the bodies of the dialects' requests described."""
    tables = {dialect.name: DIALECTS[dialect.name.replace("_", "-")] for dialect in all_dialects()}
    paths: dict[str, Any] = dict(document["paths"])
    for dialect in all_dialects():
        for path in dialect.paths:
            own = [table for table in tables[dialect.name] if path in table.title]
            content = paths[path]["post"]["requestBody"]["content"]
            content["application/json"]["schema"] = body_schema((own or tables[dialect.name])[0])
    return {**document, "paths": paths}


@pytest.fixture(scope="module")
def api() -> Iterator[OpenApiSchema]:
    with live_server(ScriptedEngine([["a", "b"]]), dialects=all_dialects()) as live, live.client() as client:
        schema = schemathesis.openapi.from_dict(described(client.get("/openapi.json").json()))
        schema.config.update(base_url=live.url)
        yield schema
        assert client.get("/slotstream/status").json()["active_requests"] == 0


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


def test_whatever_is_sent_is_answered_and_never_with_a_failure(api: OpenApiSchema, session: requests.Session) -> None:
    answers: Counter[int] = Counter()

    def ask(case: schemathesis.Case[Any]) -> None:
        response = case.call(session=session, timeout=PATIENCE_S)
        answers[response.status_code] += 1
        allowed = {501} if case.path in NOT_OFFERED else set()
        assert response.status_code < 500 or response.status_code in allowed, response.text

    operations = [result.ok() for result in api.get_all_operations() if isinstance(result, Ok)]
    for operation in operations:
        effort(given(case=operation.as_strategy())(ask))()
    assert len(operations) > 20, "the document lost its routes"
    assert answers[200] > 20
    assert answers[400] > 20
