"""The example of the package's README, as an app would run it."""

import re
from pathlib import Path
from typing import Any

from slotstream_core.testing import write_tiny_model
from tests.serve.conftest import ask, plain_dialects, service_of

README = Path(__file__).resolve().parents[2] / "packages" / "slotstream-serve" / "README.md"


def test_the_readmes_example_serves_an_engine_loaded_on_another_thread(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "model")
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"directory": directory}
    source = found[1].replace("create_app(engine, ", "create_app(engine, dialects=dialects, config=")
    names["dialects"] = plain_dialects()
    exec(compile(source, str(README), "exec"), names)
    app, engine = names["app"], names["engine"]
    body = {"text": "Hello", "max_output_tokens": 4}
    assert ask(app, "POST", "/plain", json=body).json()["events"][-1]["type"] == "ReplyFinished"
    service_of(app).stop_generations()
    assert service_of(app).runner.join(30)
    engine.close()
