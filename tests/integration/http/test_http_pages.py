"""The auditor's pages in server mode: logging in, looking, answering."""

from __future__ import annotations

import itertools
import re
import time
import uuid
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any, TypedDict

import httpx
import psycopg
import pytest
from langgraph.graph import END, START, StateGraph

from cuo_checkpoint import CheckpointWriter
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.ids import ulid_of
from cuo_supervisor.core.personas import get_persona

BAD = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;{{7*7}}</style></textarea>"
    "\u202egnp.exe\u200b\u2066 \x1b[31m " + "W" * 300 + " Z" + "\u0300\u0301" * 30 + " שלום"
)
TRANSFER = {"query": "transfer 5M VND to ACME account 0123456789", "persona": "coo"}
TAGS = re.findall(
    r"\w+",
    "html head meta title link body a header span form input button main h1 h2 h3 p label"
    " textarea footer section dl dt dd table caption thead tbody tr th td div details summary pre"
    " ul li ol nav figure figcaption svg line text path circle blockquote bdi time strong select"
    " option datalist",
)


class Page(HTMLParser):
    """What stands in a page: elements, attributes, text, and the problems of its form."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.fields: dict[str, str] = {}
        self.text = ""
        self.problems: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        if self._open:
            self.problems.append(f"left open: {self._open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        if tag not in TAGS:
            self.problems.append(f"element {tag}")
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.problems.append(f"attribute {name}")
            if name in ("href", "src", "action") and not str(value).startswith(
                ("/", "#", "data:,")
            ):
                self.problems.append(f"address {value}")
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "input" and given.get("type") == "hidden":
            self.fields[str(given["name"])] = str(given["value"])
        elif tag in ("input", "select", "textarea") and "label" not in self._open:
            self.problems.append(f"{tag} without a label")
        if tag == "th" and "scope" not in given:
            self.problems.append("th without scope")
        if tag not in ("meta", "link", "input"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag == "option" and self._open[-1] != "option":
            return
        while self._open and self._open[-1] == "option" and tag != "option":
            self._open.pop()
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> out of place")

    def handle_data(self, data: str) -> None:
        self.text += data


def read(answer: httpx.Response) -> Page:
    """The page, found sound: known elements only, no handlers, nothing from elsewhere."""
    page = Page(answer.text)
    assert page.problems == []
    assert len(set(page.ids)) == len(page.ids)
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    return page


class Browser:
    """Holds a cookie as a browser would, which sends Secure ones to loopback too."""

    def __init__(self, api: Any) -> None:
        self.client = api.client(follow_redirects=False)
        self.origin = api.url
        self.cookie = ""

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, headers=self._headers(), **options)

    def post(self, path: str, **form: str) -> httpx.Response:
        headers = {**self._headers(), "Origin": self.origin}
        answer = self.client.post(path, data=form, headers=headers)
        found = answer.headers.get("set-cookie")
        if found is not None:
            self.cookie = found.partition(";")[0]
        return answer

    def log_in(self, token: str) -> httpx.Response:
        return self.post("/login", token=token, next="/runs")

    def _headers(self) -> dict[str, str]:
        return {"Cookie": self.cookie} if self.cookie else {}


@pytest.fixture
def browser(api: Any) -> Iterator[Browser]:
    """A browser that is not logged in."""
    made = Browser(api)
    yield made
    made.client.close()


@pytest.fixture
def auditor(browser: Browser, tenant_id: str, token: Any) -> Browser:
    """A browser logged in to this test's tenant, without leave to approve."""
    assert browser.log_in(token(tenant_id)).status_code == 303
    return browser


def test_without_a_session_one_is_sent_to_log_in(browser: Browser) -> None:
    """And comes back to where one wanted to go."""
    answer = browser.get("/runs/01M8Q1XF0SETBVAE8T8SDKFAWQ?verify=true")
    assert answer.status_code == 303
    assert answer.headers["location"] == (
        "/login?next=%2Fruns%2F01M8Q1XF0SETBVAE8T8SDKFAWQ%3Fverify%3Dtrue"
    )
    page = read(browser.get(answer.headers["location"]))
    assert page.fields["next"] == "/runs/01M8Q1XF0SETBVAE8T8SDKFAWQ?verify=true"
    assert browser.post("/runs/x/answer", answer="approve").status_code == 401


def test_a_token_becomes_a_session(browser: Browser, tenant_id: str, token: Any) -> None:
    """In a cookie that scripts cannot read and other sites cannot send; logging out ends it."""
    answer = browser.log_in(token(tenant_id))
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-cuo-session=")
    for word in ("HttpOnly", "Secure", "SameSite=strict", "Path=/", "Max-Age="):
        assert word in cookie
    assert "Domain" not in cookie
    page = read(browser.get("/runs"))
    assert "subject-7" in page.text
    stale = browser.cookie
    assert browser.post("/logout", form_token="0" * 64).status_code == 403
    assert browser.post("/logout", **page.fields).status_code == 303
    browser.cookie = stale
    assert browser.get("/runs").status_code == 303


def test_a_token_that_does_not_hold_opens_nothing(
    browser: Browser, tenant_id: str, token: Any
) -> None:
    """The page says why, without the token."""
    old = token(tenant_id, exp=int(time.time()) - 3600)
    answer = browser.log_in(old)
    assert answer.status_code == 403
    assert "expired" in read(answer).text
    assert old not in answer.text
    assert "set-cookie" not in answer.headers


def test_a_session_ends_with_its_token(browser: Browser, tenant_id: str, token: Any) -> None:
    """Max-Age is what is left of the token's life."""
    cookie = browser.log_in(token(tenant_id, exp=int(time.time()) + 100)).headers["set-cookie"]
    found = re.search(r"Max-Age=(\d+)", cookie)
    assert found is not None
    assert 90 <= int(found[1]) <= 100


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "/login", "x" * 3000]
)
def test_no_open_redirect(browser: Browser, tenant_id: str, token: Any, target: str) -> None:
    """`next` leads to pages of runs only."""
    answer = browser.post("/login", token=token(tenant_id), next=target)
    assert answer.headers["location"] == "/runs"


def test_forms_from_elsewhere_are_refused(api: Any, tenant_id: str, token: Any) -> None:
    """Logging in or out from a foreign page does nothing."""
    with api.client() as client:
        for origin in ("https://evil.example", "null"):
            answer = client.post(
                "/login", data={"token": token(tenant_id)}, headers={"Origin": origin}
            )
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers


def test_a_run_shows_its_path_and_holds(
    auditor: Browser, client: httpx.Client, tenant_id: str
) -> None:
    """Decision, candidates with components, steps with changes, chain: all on one page."""
    body = {"query": "validate MST 0301479073", "persona": "cfo"}
    run = client.post("/v1/cuo/supervisor/route", json=body).json()["request_id"]
    listed = read(auditor.get("/runs", params={"persona": "cfo", "path": "auto"}))
    assert run in listed.text
    assert run not in read(auditor.get("/runs", params={"path": "ask"})).text
    answer = auditor.get(f"/runs/{run}")
    page = read(answer)
    for word in (
        "validate MST 0301479073",
        "vietnam-mst-validate@1.0",
        "name match",
        "parse → rule_score → branch → invoke → record",
        "branch_decision",
        "Holds:",
        "routing_decision",
        "chosen",
    ):
        assert word in page.text
    assert "svg" in page.tags
    assert len(answer.content) < 120_000


def test_filters_go_on_from_page_to_page(auditor: Browser, store: Any) -> None:
    """Every fitting run stands on one page, no other does, and each page keeps the filters."""
    writer, wanted = CheckpointWriter(store), set()
    for number in range(72):
        persona = "chief-financial-officer" if number % 6 else "genie"
        scores = [{"skill_name": "vietnam-mst-validate@1.0"}]
        run_id = uuid.uuid4()
        state = {"persona_key": persona, "branch_decision": "auto", "rule_scores": scores}
        writer.write(run_id, "run_started", state)
        if number % 6:
            wanted.add(ulid_of(run_id))
    path = "/runs?persona=chief-financial-officer&path=auto&skill=vietnam-mst-validate&state=open"
    path += "&since=2026-01-01T00:00"
    seen: list[str] = []
    while path:
        answer = auditor.get(path)
        read(answer)
        seen += re.findall(r'href="/runs/([0-9A-Z]{26})"', answer.text)
        found = re.search(r'<a rel="next" href="([^"]+)"', answer.text)
        path = found[1].replace("&amp;", "&") if found else ""
    assert len(seen) == len(wanted) == 60
    assert set(seen) == wanted


def test_anothers_run_looks_like_none_here_too(
    auditor: Browser, stranger: httpx.Client, store: Any, api: Any, other_tenant_id: str, token: Any
) -> None:
    """The same page for a run of another tenant and for one that never was."""
    run_id = uuid.uuid4()
    CheckpointWriter(store).write(run_id, "run_started", {})
    assert auditor.get(f"/runs/{run_id}").status_code == 200
    other = Browser(api)
    other.log_in(token(other_tenant_id))
    seen, none = other.get(f"/runs/{run_id}"), other.get(f"/runs/{uuid.uuid4()}")
    assert seen.status_code == none.status_code == 404
    assert seen.content == none.content
    assert read(seen).text
    other.client.close()


def test_an_approver_answers_on_the_page(api: Any, tenant_id: str, token: Any) -> None:
    """The form shows what would happen; approving runs it; the form counts once."""
    with api.client(token(tenant_id, agent_persona=get_persona("coo").claim)) as coo:
        run = coo.post("/v1/cuo/supervisor/route", json=TRANSFER).json()["request_id"]
    looker, boss = Browser(api), Browser(api)
    looker.log_in(token(tenant_id, "looker"))
    boss.log_in(token(tenant_id, "boss", roles=["cuo-approver"]))
    assert "form_token" not in Page(looker.get(f"/runs/{run}").text.split("</header>")[1]).fields
    page = read(boss.get(f"/runs/{run}"))
    waiting = read(boss.get("/runs?state=waiting&persona=coo&path=auto"))
    assert run in waiting.text
    assert "transfer 5M VND to ACME account [REDACTED-BANK_ACCOUNT]" in waiting.text
    for word in (
        *("Waits for an approval", "wire_transfer", "0123456789", "Approve", "Deny"),
        *("Answer until", "subject-7"),
    ):
        assert word in page.text
    form = {"answer": "approve", "reason": "checked"}
    url = f"/runs/{run}/answer"
    assert boss.post(url, **form, form_token="0" * 64).status_code == 403
    theirs = Page(looker.get("/runs").text).fields["form_token"]
    assert boss.post(url, **form, form_token=theirs).status_code == 403
    mine = page.fields["form_token"]
    assert boss.post(url, answer="perhaps", reason="x", form_token=mine).status_code == 400
    assert boss.post(url, answer="approve", reason=" ", form_token=mine).status_code == 400
    done = boss.post(url, **form, form_token=mine)
    assert (done.status_code, done.headers["location"]) == (303, f"/runs/{run}")
    for odd in ("audit_after=" + "9" * 30, "audit_after=-1", "after=x", "verify=perhaps"):
        assert read(boss.get(f"/runs/{run}?{odd}")).text
        assert boss.get(f"/runs/{run}?{odd}").status_code in (400, 422), odd
    after = read(boss.get(f"/runs/{run}"))
    assert "Waits for an approval" not in after.text
    assert "checked" in after.text
    assert "approved" in after.text
    again = boss.post(url, **form, form_token=mine)
    assert again.status_code == 409
    assert "does not wait" in read(again).text
    for one in (looker, boss):
        one.client.close()


def test_the_requester_sees_why_not(api: Any, tenant_id: str, token: Any) -> None:
    """Who asked may not answer, and is told so instead of shown a form."""
    both = token(
        tenant_id, roles=["agent-persona", "cuo-approver"], agent_persona=get_persona("coo").claim
    )
    with api.client(both) as client:
        run = client.post("/v1/cuo/supervisor/route", json=TRANSFER).json()["request_id"]
    browser = Browser(api)
    browser.log_in(both)
    page = read(browser.get(f"/runs/{run}"))
    assert "somebody else must answer" in page.text
    assert "button" not in page.tags or "Approve" not in page.text
    browser.client.close()


def hostile_run(store: Any, dsn: str, tenant: str) -> uuid.UUID:
    """A run with hostile text in every field a writer may choose."""
    run_id, writer = uuid.uuid4(), CheckpointWriter(store)
    thread = f"{run_id} {BAD[:300]}"
    state: dict[str, Any] = {
        "query": BAD,
        "branch_decision": BAD,
        "rule_scores": [
            {
                "skill_name": BAD,
                "confidence": 0.5,
                "arguments": {BAD[:40]: BAD},
                "score_components": {BAD[:60]: 1.5, "x": "y"},
            },
            "nonsense",
            7,
        ],
        "cascade_taken": True,
        "cascade_outcome": BAD,
        "llm_pick": {"skill_name": BAD, "rationale": BAD, "confidence": BAD, "arguments": [BAD]},
        "gate": {"kind": BAD, "operation": BAD},
        "invocation_result": {"exit_code": BAD, "failure": BAD, "duration_ms": BAD},
        BAD[:100]: {BAD[:50]: [1, {"$int": "zz"}]},
        "big": "y" * 300_000,
    }
    writer.write(run_id, "run_started", {}, thread_id=thread)
    for number in range(2):
        for kind in ("node_entered", "node_completed"):
            writer.write(run_id, kind, state, thread_id=thread, node_name=BAD[:200], step=number)
        writer.write(
            run_id, "edge_traversed", state, thread_id=thread, edge_from=BAD[:200], edge_to=BAD
        )
    odd = {"query": 7, "rule_scores": {"a": 1}, "gate": [], "llm_pick": "s", "decision": 1}
    writer.write(run_id, "node_entered", odd, thread_id=thread, node_name="odd")
    writer.write(run_id, "node_completed", {**state, **odd}, thread_id=thread, node_name="odd")
    said = dict.fromkeys(
        ("persona_version", "path_taken", "skill_chosen", "query", "reason", "confidence"), BAD
    )
    with psycopg.connect(dsn) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [tenant])
        body = canonical_bytes({**said, "persona_key": BAD[:60], "routed": False}).decode()
        conn.execute(
            "INSERT INTO cuo_memory_audit (tenant_id, run_id, kind, body)"
            " VALUES (%s, %s, 'cuo.routing_decision', %s)",
            [tenant, run_id, body],
        )
    return run_id


def test_hostile_text_stays_text(
    auditor: Browser, store: Any, shared_place: Any, tenant_id: str
) -> None:
    """In every field: no element, no handler, no direction is changed, and the page opens."""
    run_id = hostile_run(store, shared_place.app, tenant_id)
    for path in ("/runs", f"/runs/{run_id}"):
        answer = auditor.get(path)
        assert answer.status_code == 200
        page = read(answer)
        assert "<script>alert(1)</script>" in page.text
        assert "\\u202e" in page.text
        for hidden in ("\u202e", "\u200b", "\u2066", "\x1b"):
            assert hidden not in answer.text
        assert "49" not in page.text or "{{7*7}}" in page.text
        assert len(answer.content) < 400_000


class State(TypedDict, total=False):
    """A counter and a note."""

    n: int
    note: str


def test_a_run_of_two_thousand_events(auditor: Browser, store: Any) -> None:
    """Opens in pages of bounded weight that together show each row once, and is verified."""
    made = StateGraph(State)
    made.add_node("plan", lambda state: {"n": state["n"] + 1, "note": f"plan {state['n']}"})
    made.add_node("act", lambda state: {"note": f"act {state['n']}"})
    made.add_node("check", lambda state: {"note": "x" * (state["n"] % 7 * 100)})
    made.add_edge(START, "plan")
    made.add_edge("plan", "act")
    made.add_edge("act", "check")
    made.add_conditional_edges("check", lambda state: "plan" if state["n"] < 222 else END)
    run_id = uuid.uuid4()
    made.compile(store).invoke(
        {"n": 0},
        {"configurable": {"thread_id": "long", "run_id": run_id}, "recursion_limit": 1000},
        durability="sync",
    )
    path: str | None = f"/runs/{ulid_of(run_id)}"
    anchors: list[str] = []
    weights: list[int] = []
    places: list[str] = []
    while path is not None:
        answer = auditor.get(path)
        places += re.findall(r"Log rows (\d+ to \d+ of \d+)\.", answer.text)
        page = read(answer)
        weights.append(len(answer.content))
        anchors += [name for name in page.ids if re.fullmatch(r"s\d+", name)]
        found = re.search(r'<a rel="next" href="([^"#]+after=[^"#]+)#path"', answer.text)
        path = found[1].replace("&amp;", "&") if found else None
    first = auditor.get(f"/runs/{run_id}").text
    assert "222×" in first
    assert len(places) == 11
    assert (places[0], places[-1]) == ("1 to 200 of 2001", "2001 to 2001 of 2001")
    end = re.search(r'href="([^"]+)#path">To the end', first)
    assert end is not None
    last = auditor.get(end[1].replace("&amp;", "&")).text
    assert "Run completed" in last
    assert "2001 to 2001 of 2001" in last
    back = re.search(r'rel="prev" href="([^"]+)#path"', last)
    assert back is not None
    assert "Log rows 1801 to 2000 of" in auditor.get(back[1].replace("&amp;", "&")).text
    assert len(set(anchors)) == len(anchors)
    assert len(anchors) >= 668  # 666 visits, the start and the end
    assert max(weights) < 500_000
