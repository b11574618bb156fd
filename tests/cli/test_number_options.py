"""Numbers that no command can use are refused before anything is loaded or written."""

import pytest
from click.testing import CliRunner

from slotstream_cli.main import main

FINITE = (
    ("serve", "--prefix-cache-disk-gb"),
    ("serve", "--prefix-cache-max-age-days"),
    ("lookahead-fit", "--sums-gb"),
    ("launch", "--idle-exit"),
    ("launch", "--memory-gb"),
    ("run", "--temperature"),
    ("run", "--top-p"),
    ("run", "--min-p"),
    ("run", "--pinned-gb"),
    ("run", "--presence-penalty"),
    ("run", "--max-prefill-wait"),
    ("chat", "--temperature"),
    ("chat", "--top-p"),
    ("serve", "--max-prefill-wait"),
    ("serve", "--idle-exit"),
    ("doctor", "--max-prefill-wait"),
    ("context-check", "--min-free-gb"),
    ("context-check", "--wall-seconds"),
    ("context-check", "--max-prefill-wait"),
)


@pytest.mark.parametrize(("command", "option"), FINITE)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e308"])
def test_a_number_that_is_not_finite_or_beyond_reason_is_refused_by_name(command: str, option: str, value: str) -> None:
    result = CliRunner().invoke(main, [command, "--model", "/nowhere", option, value])
    assert result.exit_code == 2, result.output
    assert f"Invalid value for '{option}'" in result.output
    assert value.strip("-") in result.output or "1e+308" in result.output


OUTSIDE = (
    ("run", "--temperature", "-0.1"),
    ("run", "--top-p", "0"),
    ("run", "--top-p", "1.01"),
    ("run", "--min-p", "-0.1"),
    ("run", "--top-k", "-1"),
    ("chat", "--temperature", "-1"),
    ("chat", "--top-k", "-1"),
    ("serve", "--idle-exit", "-1"),
    ("serve", "--idle-exit", "10081"),
    ("serve", "--max-prefill-wait", "-1"),
    ("prefill-schedule", "--tokens", "99999999999999999999"),
    ("prefill-schedule", "--from", "-1"),
)


@pytest.mark.parametrize("option", ["--memory-gb", "--memory-limit-gb", "--pool-gb", "--pinned-gb"])
def test_every_size_has_the_same_bound(option: str) -> None:
    below, at = (CliRunner().invoke(main, ["doctor", "--no-probe", option, size]) for size in ("999999999", "1e9"))
    refusals = ("a size in GB above 0 and below 1,000,000,000", "nor a size in GB")
    assert not any(words in below.output for words in refusals)
    assert any(words in " ".join(at.output.split()) for words in refusals)
    assert at.exit_code == 2


@pytest.mark.parametrize("value", ["0", "-1", "on", ""])
def test_what_is_no_size_of_pinned_files_is_refused_by_name(value: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--pinned-gb", value])
    assert result.exit_code == 2, result.output
    assert f"{value!r} is neither auto nor off nor a size in GB" in " ".join(result.output.split())


def test_pinned_files_are_refused_where_no_nvidia_gpu_would_fetch_from_them() -> None:
    result = CliRunner().invoke(main, ["doctor", "--sim-ram", "64", "--pinned-gb", "3"])
    assert result.exit_code == 2, result.output
    assert "leave it out" in result.output
    for size in ("auto", "off"):
        assert CliRunner().invoke(main, ["doctor", "--sim-ram", "64", "--pinned-gb", size]).exit_code == 0


@pytest.mark.parametrize(("command", "option", "value"), OUTSIDE)
def test_a_number_outside_its_range_is_refused_with_the_range(command: str, option: str, value: str) -> None:
    result = CliRunner().invoke(main, [command, option, value])
    assert result.exit_code == 2, result.output
    assert f"Invalid value for '{option}'" in result.output
    assert "is not in the range" in result.output
