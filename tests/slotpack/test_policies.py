"""Rate-limit headers, backoff, connection tuning, rates and estimates: pure rules."""

import pytest

from slotpack.progress import RateMeter
from slotpack.throttling import backoff_s, throttle_wait_s
from slotpack.transferring import decoder_count
from slotpack.tuning import ConnectionTuner, Window, WindowMeter

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "17"}, 17.0),
        ({"retry-after": "Fri, 15 Jan 2027 08:01:30 GMT"}, 90.0),
        ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0.0),
        ({"ratelimit": '"api";r=0;t=41'}, 42.0),
        ({"ratelimit": "limit=10, remaining=0, t=9"}, 10.0),
        ({"ratelimit": '"a";r=0;t=5, "b";r=0;t=8'}, 9.0),
        ({"retry-after": "50", "ratelimit": '"api";r=0;t=41'}, 50.0),
        ({"retry-after": "3", "ratelimit": '"api";r=0;t=41'}, 42.0),
        ({"retry-after": "100000"}, 600.0),
        ({}, 300.0),
        ({"retry-after": "soon"}, 300.0),
        ({"retry-after": "-4"}, 300.0),
        ({"retry-after": "1.5"}, 300.0),
        ({"retry-after": ""}, 300.0),
        ({"ratelimit": '"api";r=0'}, 300.0),
        ({"ratelimit": "reset=5"}, 300.0),
        ({"retry-after": "99999999999999999999"}, 300.0),
    ],
)
def test_a_429_waits_as_its_headers_ask(headers: dict[str, str], wait: float) -> None:
    assert throttle_wait_s(headers, NOW) == wait


def test_backoff_doubles_up_to_eight_seconds() -> None:
    assert [backoff_s(attempt) for attempt in range(6)] == [1, 2, 4, 8, 8, 8]


def window(megabytes_per_s: float, retries: int = 0, backlog: bool = False) -> Window:
    return Window(rate_bytes_per_s=megabytes_per_s * 1e6, retries=retries, backlog=backlog)


def test_connections_grow_while_each_step_pays() -> None:
    tuner = ConnectionTuner()
    targets = [tuner.target]
    for rate in (100, 125, 150):
        tuner.observe(window(rate), remaining_part=0.9)
        targets.append(tuner.target)
    assert targets == [8, 16, 32, 32]
    assert tuner.is_finished


def test_a_step_that_does_not_pay_is_taken_back_for_good() -> None:
    tuner = ConnectionTuner()
    for rate in (100, 105, 400):
        tuner.observe(window(rate), remaining_part=0.9)
    assert tuner.target == 8
    assert tuner.is_finished


@pytest.mark.parametrize("disturbed", [window(100, retries=1), window(100, backlog=True)])
def test_a_disturbed_first_window_stops_at_once(disturbed: Window) -> None:
    tuner = ConnectionTuner()
    tuner.observe(disturbed, remaining_part=0.9)
    assert (tuner.target, tuner.is_finished) == (8, True)


@pytest.mark.parametrize("disturbed", [window(200, retries=1), window(200, backlog=True)])
def test_a_disturbed_step_is_taken_back(disturbed: Window) -> None:
    tuner = ConnectionTuner()
    tuner.observe(window(100), remaining_part=0.9)
    assert tuner.target == 16
    tuner.observe(disturbed, remaining_part=0.9)
    assert (tuner.target, tuner.is_finished) == (8, True)


def test_the_last_fifth_of_the_queue_is_not_judged() -> None:
    tuner = ConnectionTuner()
    tuner.observe(window(100), remaining_part=0.2)
    assert (tuner.target, tuner.is_finished) == (8, False)


def test_a_fixed_number_of_connections_stays() -> None:
    tuner = ConnectionTuner(3)
    tuner.observe(window(100), remaining_part=0.9)
    assert (tuner.target, tuner.is_finished) == (3, True)


def test_windows_last_thirty_seconds_and_keep_a_passing_backlog() -> None:
    meter = WindowMeter(0.0)
    assert meter.update(10.0, total_bytes=100, total_retries=0, backlog=True) is None
    first = meter.update(30.0, total_bytes=3000, total_retries=2, backlog=False)
    assert first == Window(rate_bytes_per_s=100.0, retries=2, backlog=True)
    assert meter.update(60.0, total_bytes=9000, total_retries=2, backlog=False) == window(200 / 1e6)


def test_no_estimate_before_64_mib_and_5_seconds() -> None:
    meter = RateMeter(0.0)
    mib = 2**20
    assert meter.eta_s(4.9, 100 * mib, 900 * mib, 1000 * mib) is None
    assert meter.eta_s(6.0, 63 * mib, 900 * mib, 1000 * mib) is None
    assert meter.eta_s(6.0, 64 * mib, 128 * mib, 1000 * mib) == 12.0
    assert meter.eta_s(10.0, 5 * mib, 0, 5 * mib) == 0.0


def test_the_rate_looks_at_the_last_fifteen_seconds() -> None:
    meter = RateMeter(0.0)
    meter.update(10.0, 1000)
    meter.update(20.0, 1000)
    assert meter.update(30.0, 3000) == pytest.approx(200.0)


@pytest.mark.parametrize(("cores", "decoders"), [(1, 1), (2, 1), (3, 1), (4, 2), (12, 6), (64, 8)])
def test_half_the_cores_decode(cores: int, decoders: int) -> None:
    assert decoder_count(cores) == decoders
