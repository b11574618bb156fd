"""What the distance to the limit is computed from."""

from __future__ import annotations

import pytest

from benchmarks.offline.distance import Rounds, judge, parse


def rounds(token_s: list[float], read_bytes: list[float]) -> Rounds:
    zeros = [0.0] * len(token_s)
    return Rounds(
        prefill_tokens_per_s=[1.0] * len(token_s),
        token_s=token_s,
        whole_s=[0.002] * len(token_s),
        processor_s=zeros,
        read_bytes=read_bytes,
        wait_s=zeros,
        missed_records=zeros,
        late_records=zeros,
        wasted_bytes=zeros,
    )


def test_each_round_has_the_bound_of_what_it_missed_without_reading_ahead() -> None:
    measured = {
        "pool of 100.0%": rounds([0.002, 0.002], [0.0, 0.0]),
        "pool of 50.0%, off": rounds([0.010, 0.005], [8e6, 1e6]),
        "pool of 50.0%, on": rounds([0.016, 0.004], [9e6, 2e6]),
    }
    values, rows = judge(measured, bandwidth=1e9)
    assert values["pool of 100.0% of_the_limit"] == pytest.approx(1.0)
    assert values["pool of 50.0%, off of_the_limit"] == pytest.approx((8 / 10 + 2 / 5) / 2)
    assert values["pool of 50.0%, on of_the_limit"] == pytest.approx((8 / 16 + 2 / 4) / 2)
    assert values["pool of 50.0%, on missed_bytes_per_token"] == pytest.approx(4.5e6)
    assert len(rows) == 3


def test_a_checkpoint_that_nobody_names_is_not_said_to_be_synthetic(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["distance", "--demo", "--synthetic"])
    with pytest.raises(SystemExit, match="2"):
        parse()
    assert "--synthetic says what --model names" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["distance", "--model", "somewhere", "--synthetic"])
    assert parse().synthetic
