"""The dialects share one server, so no two may claim a route."""

from slotstream_serve.dialects.base import AnswersInfo, CountsTokens
from slotstream_serve.dialects.catalog import all_dialects


def test_no_two_dialects_claim_a_route() -> None:
    routes: list[tuple[str, str]] = []
    for dialect in all_dialects():
        routes += [("POST", path) for path in dialect.paths]
        if isinstance(dialect, CountsTokens):
            routes += [("POST", path) for path in dialect.count_paths]
        if isinstance(dialect, AnswersInfo):
            routes += [(route.method, route.path) for route in dialect.info_routes]
    assert len(routes) == len(set(routes))
    assert len({dialect.name for dialect in all_dialects()}) == 5
