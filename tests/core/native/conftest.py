"""Expert files that tests of the compiled lanes share."""

from collections.abc import Iterator

import pytest

from tests.core.expert_files import ExpertFile, expert_file


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertFile]:
    """Three layers of 24 experts, read-only."""
    with expert_file(tmp_path_factory.mktemp("experts"), layers=3, experts=24) as opened:
        yield opened
