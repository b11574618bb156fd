"""The example of the package's README, as an app would run it."""

import re
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from tests.serve.conftest import PATIENCE_S, ask, plain_dialects, service_of

README = Path(__file__).resolve().parents[2] / "packages" / "slotstream-serve" / "README.md"


def test_the_readmes_example_serves_an_engine_loaded_on_another_thread() -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    answers: list[Any] = []

    def answer(app: FastAPI) -> None:
        body = {"text": "Hello", "max_output_tokens": 4}
        answers.append(ask(app, "POST", "/plain", json=body).json())
        service_of(app).stop_generations()
        assert service_of(app).runner.join(PATIENCE_S)

    source = found[1].replace("create_app(engine, ", "create_app(engine, dialects=dialects, config=")
    source = source.replace("        print(", "        answer(app)\n        print(")  # while the engine is open
    names: dict[str, Any] = {"dialects": plain_dialects(), "answer": answer}
    exec(compile(source, str(README), "exec"), names)
    assert answers[0]["events"][-1]["type"] == "ReplyFinished"
