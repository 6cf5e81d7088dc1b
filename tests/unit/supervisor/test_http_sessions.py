"""Browser sessions, options and metrics of the HTTP service."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from cuo_supervisor.errors import ConfigError
from cuo_supervisor.http.metrics import Metrics
from cuo_supervisor.http.options import Options, is_loopback
from cuo_supervisor.http.sessions import Sessions
from cuo_supervisor.identity import LOCAL_IDENTITY


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_found_until_its_token_expires() -> None:
    """Not a second longer, whatever the cookie."""
    clock = Clock()
    sessions = Sessions(clock=clock)
    name, seconds = sessions.start(LOCAL_IDENTITY, token_expires=1300)
    assert seconds == 300
    assert sessions.find(name) is not None
    clock.now = 1299.9
    assert sessions.find(name) is not None
    clock.now = 1300
    assert sessions.find(name) is None


def test_an_idle_session_ends() -> None:
    """After an hour without a request; each request starts the hour anew."""
    clock = Clock()
    sessions = Sessions(clock=clock)
    name, seconds = sessions.start(LOCAL_IDENTITY, token_expires=1e9)
    assert seconds == 8 * 3600
    clock.now += 3500
    assert sessions.find(name) is not None
    clock.now += 3500
    assert sessions.find(name) is not None
    clock.now += 3601
    assert sessions.find(name) is None


def test_names_are_unguessable_and_end() -> None:
    """Nothing, a wrong name and an ended one find nothing."""
    sessions = Sessions(clock=Clock())
    name, _ = sessions.start(LOCAL_IDENTITY, token_expires=1e9)
    assert len(name) >= 43
    for other in (None, "", name[:-1], "\ud800"):
        assert sessions.find(other) is None
    sessions.end(name)
    assert sessions.find(name) is None


def test_a_forms_token_is_of_one_session_and_purpose() -> None:
    """Neither another session's nor another form's is accepted."""
    sessions = Sessions(clock=Clock())
    one = sessions.find(sessions.start(LOCAL_IDENTITY, token_expires=1e9)[0])
    other = sessions.find(sessions.start(LOCAL_IDENTITY, token_expires=1e9)[0])
    assert one is not None
    assert other is not None
    assert one.accepts("answer/1", one.form_token("answer/1"))
    assert not one.accepts("answer/2", one.form_token("answer/1"))
    assert not other.accepts("answer/1", one.form_token("answer/1"))
    assert not one.accepts("answer/1", "é")


def test_the_number_of_sessions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one idle longest makes room."""
    monkeypatch.setattr("cuo_supervisor.http.sessions._MAX_SESSIONS", 2)
    sessions = Sessions(clock=Clock())
    first, second = (sessions.start(LOCAL_IDENTITY, token_expires=1e9)[0] for _ in range(2))
    sessions.find(first)
    sessions.start(LOCAL_IDENTITY, token_expires=1e9)
    assert sessions.find(second) is None
    assert sessions.find(first) is not None


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost.evil.example", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_loopback_names(host: str, loopback: bool) -> None:
    """What names this machine only."""
    assert is_loopback(host) is loopback


def test_limits_must_be_above_zero() -> None:
    """A limit of nothing is a mistake, told at once."""
    with pytest.raises(ConfigError, match="readers"):
        Options(readers=0)


def test_metrics_are_prometheus_text() -> None:
    """Counters, gauges and histograms in the exposition format, labels escaped."""
    metrics = Metrics()
    provider = MeterProvider([metrics.reader])
    meter = provider.get_meter("test")
    meter.create_counter("c_total", description="Counts.\nTwice.").add(2, {"a": 'x"\\\n'})
    meter.create_up_down_counter("open").add(-1)
    meter.create_histogram("h.ms", explicit_bucket_boundaries_advisory=[1.0, 5.0]).record(3)
    lines = metrics.text().splitlines()
    provider.shutdown()
    assert "# HELP c_total Counts.\\nTwice." in lines
    assert "# TYPE c_total counter" in lines
    assert r'c_total{a="x\"\\\n"} 2' in lines
    assert "# TYPE open gauge" in lines
    assert "open -1" in lines
    assert 'h_ms_bucket{le="1.0"} 0' in lines
    assert 'h_ms_bucket{le="5.0"} 1' in lines
    assert 'h_ms_bucket{le="+Inf"} 1' in lines
    assert "h_ms_count 1" in lines
