"""What is personal, what is not, and that a scan can neither leak nor hang nor raise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_supervisor.core import pii
from cuo_supervisor.core.pii import scan
from cuo_supervisor.core.scrub import SCAN_FAILED, Kind, find, scrub, scrub_value

FIXTURE = Path(__file__).parents[2] / "fixtures" / "pii_cases.txt"
MARK = re.compile(r"⟦([A-Z_]+)\|(.*?)⟧", re.DOTALL)


def _cases() -> list[str]:
    lines = FIXTURE.read_text("utf-8").splitlines()
    wanted = [line for line in lines if line.strip() and not line.startswith("#")]
    escape = re.compile(r"\\(?:u[0-9a-f]{4}|n)")
    return [escape.sub(lambda m: m[0].encode().decode("unicode_escape"), line) for line in wanted]


CASES = _cases()


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    """Each marked part is redacted under its name, and nothing else is touched."""
    text = MARK.sub(r"\2", case)
    assert scrub(text) == MARK.sub(lambda m: f"[REDACTED-{m[1]}]", case)


def test_fixture_is_large_and_complete() -> None:
    """At least 150 cases; every kind has positives; a third of the cases are negatives."""
    kinds = Counter(kind for case in CASES for kind, _ in MARK.findall(case))
    assert len(CASES) >= 150
    assert set(kinds) == {kind.value for kind in Kind}
    assert sum(1 for case in CASES if not MARK.search(case)) >= len(CASES) // 4


@pytest.mark.parametrize("case", [case for case in CASES if MARK.search(case)])
def test_offsets(case: str) -> None:
    """Ranges are offsets of the original text, full-width and zero-width characters included."""
    text = MARK.sub(r"\2", case)
    assert [text[start:end] for start, end, _ in find(text)] == [m[1] for m in MARK.findall(case)]


@pytest.mark.parametrize("case", CASES)
def test_nfd_and_upper_case(case: str) -> None:
    """Decomposed text redacts the same number of things; so does text without diacritics."""
    text = MARK.sub(r"\2", case)
    wanted = len(MARK.findall(case))
    assert len(find(unicodedata.normalize("NFD", text))) == wanted
    plain = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    assert len(find(plain)) == wanted


def test_kinds_are_closed() -> None:
    """Thirteen kinds; adding one is a decision that shows here."""
    assert len(Kind) == 13
    assert set(pii.kinds.PRIORITY) == set(Kind)


ALPHABET = st.sampled_from(
    [*"0123456789 .-+()@:/,=\n\"'", "09", "84", "4111", "mst ", "sđt", "stk ", "cccd", "iban",
     "a", "Z", "@a.vn", "eyJ", "sk-", "://", "password: ", "[REDACTED-MST]", "[", "]", "９",
     "\u200b", "\u0301", "\ud800", "\x00", "İ", "ß", "::", "GB82", "Bearer "]
)  # fmt: skip
HOSTILE = st.lists(ALPHABET, max_size=60).map("".join) | st.text(max_size=120)


@given(HOSTILE)
def test_idempotent(text: str) -> None:
    """Scrubbing twice is scrubbing once, and what is left holds nothing to find."""
    once = scrub(text)
    assert scrub(once) == once
    assert once == SCAN_FAILED or find(once) == []


@given(HOSTILE)
def test_ranges_are_sound(text: str) -> None:
    """Ranges are in order, inside the text, not empty, and do not overlap."""
    position = 0
    for start, end, kind in find(text):
        assert position <= start < end <= len(text)
        assert isinstance(kind, Kind)
        position = end


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | HOSTILE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HOSTILE, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_values_keep_their_shape(value: Any) -> None:
    """Containers keep their size and order; nothing raises; the input is not changed."""
    before = repr(value)
    out = scrub_value(value)
    assert repr(value) == before
    assert _shape(out) == _shape(value)


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [_shape(item) for item in value.values()]
    if isinstance(value, list):
        return [[_shape(item)] for item in value]
    return None


@given(st.integers(0, 999_999_999), st.sampled_from(["sđt", "MST", "STK", "số tài khoản", "CCCD"]))
def test_context_redacts_the_shape(number: int, word: str) -> None:
    """After a context word the shape is enough, whatever its check digit."""
    digits = f"0{number:09d}"
    assert digits not in scrub(f"{word} {digits}")


def test_keys_are_context() -> None:
    """A JSON key says what its value is, in snake case and camel case, also through lists."""
    assert scrub_value(
        {"mst": "0301479073", "phoneNumber": 912345678, "bank_account": [{"x": 1}, "123456"]}
    ) == {
        "mst": "[REDACTED-MST]",
        "phoneNumber": "[REDACTED-PHONE]",
        "bank_account": [{"x": 1}, "[REDACTED-BANK_ACCOUNT]"],
    }
    assert scrub_value({"password": "hunter"}) == {"password": "[REDACTED-SECRET]"}


def test_keys_are_scrubbed_and_none_is_lost() -> None:
    """Keys that become equal are numbered."""
    assert scrub_value({"a@b.vn": 1, "c@d.vn": 2, "e@f.vn": 3}) == {
        "[REDACTED-EMAIL]": 1,
        "[REDACTED-EMAIL]#2": 2,
        "[REDACTED-EMAIL]#3": 3,
    }


def test_plain_values_pass() -> None:
    """Values without personal data come back equal, with their types."""
    value = {"a": [1, 2.5, True, None, "x"], "confidence": 0.92, "n": 2**70}
    assert scrub_value(value) == value
    assert json.dumps(scrub_value(value)) == json.dumps(value)


def test_too_deep_and_not_json() -> None:
    """Depth and foreign types fail closed instead of raising."""
    deep: Any = "0912345678"
    for _ in range(10_000):
        deep = [deep]
    assert "0912345678" not in repr(scrub_value(deep))[:2000]
    assert scrub_value({"x": object()}) == {"x": SCAN_FAILED}
    loop: list[Any] = []
    loop.append(loop)
    scrub_value(loop)


def test_fails_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the scan breaks, the text is withheld."""

    def broken(*_: object) -> Any:
        raise RuntimeError

    monkeypatch.setattr(scan, "find_numbers", broken)
    assert scrub("sđt 0912345678") == SCAN_FAILED
    assert scrub_value({"a": "b"}) == {SCAN_FAILED: SCAN_FAILED}


def test_too_long_is_withheld() -> None:
    """Beyond the scan limit nothing is returned unscanned."""
    assert scrub("a" * (pii.MAX_SCAN_CHARS + 1)) == SCAN_FAILED


def test_without_phone_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the phone library a "+" number is redacted on its shape."""
    monkeypatch.setattr(pii.checks, "_phonenumbers", lambda: None)
    assert scrub("+999 123 4567") == "[REDACTED-PHONE]"


def test_phone_metadata_is_lazy() -> None:
    """Texts without "+" never load the phone library."""
    code = (
        "import sys; from cuo_supervisor.core.scrub import scrub\n"
        "scrub('sđt 0912345678 4111111111111111'); assert 'phonenumbers' not in sys.modules\n"
        "scrub('+14155552671'); assert 'phonenumbers' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=FIXTURE.parents[2])


SEEDS = [
    "1 ", "1", "a@", "@", "a@a.", ":", "1:", "::1 ", "1.", "1.1.1.1 ", "+1", "+14155552671 ",
    "eyJ", "eyJa.", "sk-", "sk-a ", "http://a:", "a://b:c", "-----BEGIN PRIVATE KEY-----",
    "0912345678 ", "0912345678", "gb82 ", "GB82WEST1234", "mst ", "mst 1 ", "stk 123456 ",
    "password:", "token=a ", "bearer a", "a" * 70, "4111 ", "(", "()1", "B1234567 ",
    "passport B1234567 ", "sđt", "\u0301", "\u200b", "[REDACTED-MST]", "İ", "-----BEGIN ",
]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_hostile_input_is_linear(seed: str) -> None:
    """Twice the length costs about twice the time, and 8 kB stays far from a second."""
    short, long = _time(seed, 4096), _time(seed, 8192)
    assert long < 0.25
    assert long / max(short, 0.002) < 3.0


def _time(seed: str, size: int) -> float:
    """Best of five, in seconds of this thread's own work: neighbours on the machine do not count."""
    text = (seed * (size // len(seed) + 1))[:size]
    best = 9.0
    for _ in range(5):
        started = time.thread_time()
        find(text)
        best = min(best, time.thread_time() - started)
    return best
