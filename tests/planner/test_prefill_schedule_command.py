"""`slotstream prefill-schedule` prints the passes of a prompt."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from slotstream_cli.main import main


def schedule(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["prefill-schedule", *arguments])


def test_the_default_window_is_shown() -> None:
    result = schedule()
    assert result.exit_code == 0
    assert "25 passes read 32768 tokens" in result.output
    assert "17 x 1024" in result.output
    assert "3.0 min" in result.output


def test_json_lists_every_pass_and_the_resume_points() -> None:
    document = json.loads(schedule("--tokens", "1000", "--chunk", "256", "--from", "512", "--json").output)
    assert [each["start"] for each in document["passes"]] == [512, 768, 1024, 1280]
    last = {"start": 1280, "tokens": 232, "canonical_tokens": 256, "query_rows": 232, "key_extent": 1512}
    assert document["passes"][-1] == last
    assert document["resume_boundaries"] == [768, 1024, 1280]
    assert document["est_prefill_s"] == 1000 / 85


def test_a_window_without_measurements_has_no_estimate() -> None:
    assert json.loads(schedule("--tokens", "262144", "--json").output)["est_prefill_s"] is None
    assert "unknown" in schedule("--tokens", "262144").output


def test_bad_sizes_are_usage_errors() -> None:
    for arguments in (["--tokens", "-1"], ["--chunk", "32"], ["--from", "-5"], ["--tokens", "x"]):
        result = schedule(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
