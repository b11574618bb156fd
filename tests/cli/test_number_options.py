"""Numbers that no command can use are refused before anything is loaded or written."""

import pytest
from click.testing import CliRunner

from slotstream_cli.main import main

FINITE = (
    ("serve", "--prefix-cache-disk-gb"),
    ("serve", "--prefix-cache-max-age-days"),
    ("lookahead-fit", "--sums-gb"),
    ("launch", "--idle-exit"),
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
