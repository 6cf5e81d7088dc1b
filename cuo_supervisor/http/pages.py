"""The auditor's pages: runs, one run, logging in, answering. Server-rendered, without scripts."""

from __future__ import annotations

import datetime as dt
import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, quote, urlencode

import jinja2
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from cuo_checkpoint.run_records import OUTCOMES, STATES, RunSummary
from cuo_supervisor.core.personas import PERSONAS, get_persona
from cuo_supervisor.errors import IdentityRejected, PersonaUnknown, UsageError
from cuo_supervisor.expiry import answer_until
from cuo_supervisor.http.auth import COOKIE, TheService
from cuo_supervisor.http.page_data import RunData, last_state, load_run
from cuo_supervisor.http.problems import Problem, problem_response, run_unknown
from cuo_supervisor.http.routes_supervisor import answer_run
from cuo_supervisor.http.run_context import run_context
from cuo_supervisor.http.run_page import state_word, tone_of
from cuo_supervisor.http.service import Service, run_uuid
from cuo_supervisor.http.sessions import Session
from cuo_supervisor.http.text import pretty, shortened, size_text, visible

__all__ = ["render_problem", "router"]

router = APIRouter(include_in_schema=False)

_FILTERS: Final = ("since", "until", "state", "outcome", "persona", "path", "skill")
_PATHS: Final = ("auto", "ask", "defer", "cascade_then_auto", "cascade_then_ask")
_PAGE: Final = 50
_MAX_FIELDS: Final = 20


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("cuo_supervisor.http"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "visible": visible,
        "pretty": pretty,
        "shortened": shortened,
        "size": size_text,
    }
    return made


_TEMPLATES: Final = _environment()


@lru_cache(1)
def _style() -> tuple[str, bytes]:
    """The style sheet's address, which changes with it, and its bytes."""
    content = files("cuo_supervisor.http").joinpath("assets/style.css").read_bytes()
    return f"/assets/{hashlib.sha256(content).hexdigest()[:16]}.css", content


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    """The style sheet. No login: the login page wears it too."""
    address, content = _style()
    if not address.endswith(f"/{name}"):
        raise Problem(404, "not_found", "there is nothing at this address")
    kept = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(content, media_type="text/css", headers=kept)


@router.get("/")
async def root() -> Response:
    """The list of runs is the front page."""
    return RedirectResponse("/runs", 303)


@router.get("/login")
async def login_page(service: TheService, next: str = "/runs") -> Response:  # noqa: A002
    """The form for a token. In local mode there is nothing to log in to."""
    if service.local:
        return RedirectResponse("/runs", 303)
    return _page("login.html", None, next=_inside(next), problem=None)


@router.post("/login")
async def log_in(request: Request, service: TheService) -> Response:
    """Exchanges a token for a session. The cookie cannot be read by scripts or sent cross-site."""
    form = await _form(request)
    target = _inside(form.get("next", "/runs"))
    if service.local:
        return RedirectResponse(target, 303)
    try:
        name, seconds = await service.log_in(form.get("token", "").strip())
    except IdentityRejected as error:
        status = 503 if error.reason == "keys_unavailable" else 403
        return _page("login.html", None, status=status, next=target, problem=str(error))
    service.sessions.end(request.cookies.get(COOKIE))
    answer = RedirectResponse(target, 303)
    answer.set_cookie(
        COOKIE, name, max_age=seconds, path="/", secure=True, httponly=True, samesite="strict"
    )
    return answer


@router.post("/logout")
async def log_out(request: Request, service: TheService) -> Response:
    """Ends the session."""
    session = _session(request, service)
    form = await _form(request)
    _check_form(session, "logout", form)
    service.sessions.end(request.cookies.get(COOKIE))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
    return answer


@router.get("/runs")
async def run_list(request: Request, service: TheService) -> Response:
    """Runs with their decisions, newest first; every filter may be left empty."""
    session = _session(request, service)
    given = {name: request.query_params.get(name, "").strip()[:200] for name in _FILTERS}
    since, until = _when("since", given["since"]), _when("until", given["until"])
    before = request.query_params.get("before") or None
    page = await service.read(
        session.identity,
        lambda reader: reader.list_runs(
            limit=_PAGE,
            before=before,
            since=since,
            until=until,
            **{name: given[name] or None for name in _FILTERS[2:]},
        ),
    )
    asked = {name: value for name, value in given.items() if value}
    rows = [
        {
            "at": run.first_at.strftime("%Y-%m-%d %H:%M:%S"),
            "ulid": run.ulid,
            "state": visible(state_word(run)),
            "tone": tone_of(run),
            "persona": _persona(run.persona),
            "path": _path(run),
            "skill": visible(shortened(str(run.skill or "–"), 80)),
            "query": visible(shortened(run.query or "", 140)),
        }
        for run in page.runs
    ]
    return _page(
        "runs.html",
        session,
        service=service,
        runs=rows,
        given=given,
        filtered=bool(asked),
        next=f"/runs?{urlencode({**asked, 'before': page.next})}" if page.next else None,
        first=f"/runs?{urlencode(asked)}" if before else None,
        states=STATES,
        personas=[p.short for p in PERSONAS.values()],
        paths=_PATHS,
        outcomes=OUTCOMES,
        skills=[skill.skill_name for skill in service.supervisor.catalog.skills],
    )


@router.get("/runs/{run_id}")
async def run_page(
    run_id: str,
    request: Request,
    service: TheService,
    after: str | None = None,
    audit_after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    verify: bool = False,
) -> Response:
    """One run: its path, what each step changed, its gates, its chain."""
    session = _session(request, service)
    run = run_uuid(run_id)
    data = await service.read(
        session.identity,
        lambda reader: load_run(reader, run, after=after, audit_after=audit_after, verify=verify),
    )
    if data is None:
        raise run_unknown()
    context = run_context(data) | {"local": service.local}
    if data.run.state == "waiting":
        context |= _answering(session, data)
    return _page("run.html", session, service=service, **context)


@router.post("/runs/{run_id}/answer")
async def answer(run_id: str, request: Request, service: TheService) -> Response:
    """Approves or denies, as the API does, for whoever may."""
    session = _session(request, service)
    form = await _form(request)
    run = run_uuid(run_id)
    _check_form(session, f"answer/{run}", form)
    if form.get("answer") not in ("approve", "deny"):
        raise UsageError("say approve or deny")
    await answer_run(
        service,
        session.identity,
        run_id,
        approve=form["answer"] == "approve",
        reason=form.get("reason", "")[:2000],
    )
    return RedirectResponse(f"/runs/{quote(run_id)}", 303)


def render_problem(scope: Scope, problem: Problem) -> Response:
    """A problem as a page where a person asked for one, else as its document."""
    path = scope["path"]
    if not (path.startswith(("/runs", "/login", "/logout")) or path == "/"):
        return problem_response(problem)
    if problem.error == "identity_rejected" and scope["method"] == "GET":
        query = scope["query_string"].decode("latin-1")
        target = quote(path) + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?{urlencode({'next': target})}", 303)
    return _page("error.html", None, status=problem.status, problem=problem)


def _answering(session: Session, data: RunData) -> dict[str, Any]:
    who = session.identity
    state = last_state(data)
    mine = not who.local and state.get("subject_id") == who.subject_id
    asked_by, until = state.get("subject_id"), answer_until(state, data.run.first_at)
    over = until is not None and until < dt.datetime.now(dt.UTC)
    if over:
        why_not = "The time to answer is over: an approval would count no more."
    elif mine:
        why_not = "You asked for it, so somebody else must answer."
    else:
        why_not = "Answering needs the role cuo-approver."
    return {
        "may_answer": "cuo-approver" in who.roles and not mine and not over,
        "why_not": why_not,
        "asked_by": visible(shortened(asked_by, 200)) if isinstance(asked_by, str) else None,
        "until": f"{until:%Y-%m-%d %H:%M:%S} UTC" if until is not None else None,
        "form_token": session.form_token(f"answer/{data.run.run_id}"),
    }


def _session(request: Request, service: Service) -> Session:
    """The browser's session. Raises IdentityRejected, which sends a browser to the login page."""
    session = service.session_of(request.cookies.get(COOKIE))
    if session is None:
        raise IdentityRejected("missing", "log in first")
    return session


async def _form(request: Request) -> dict[str, str]:
    """A form's fields; the guard has bounded its size. Raises UsageError."""
    try:
        fields = parse_qs(
            (await request.body()).decode(),
            keep_blank_values=True,
            strict_parsing=False,
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError:
        raise UsageError("the form cannot be read") from None
    if any(len(values) > 1 for values in fields.values()):
        raise UsageError("the form names a field twice")
    return {name: values[0] for name, values in fields.items()}


def _check_form(session: Session, purpose: str, form: dict[str, str]) -> None:
    if not session.accepts(purpose, form.get("form_token", "")):
        raise Problem(403, "form_expired", "this form is not of your session; load the page again")


def _inside(target: str) -> str:
    """An address of this site's own, whatever was asked for: no open redirect."""
    safe = target.startswith("/runs") and target.isprintable() and "\\" not in target
    return target if safe and len(target) <= 2000 else "/runs"


def _path(run: RunSummary) -> str:
    said = ": ".join(word for word in (run.path, run.reason) if word) or "–"
    return visible(shortened(said.replace("_", " "), 60))


def _persona(key: str | None) -> str:
    """The short name where there is one: a column is narrow."""
    try:
        return get_persona(str(key)).short
    except PersonaUnknown:
        return visible(shortened(str(key or "–"), 60))


def _when(name: str, text: str) -> dt.datetime | None:
    if not text:
        return None
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{name} is no time such as 2026-11-30T08:15") from None
    return at.replace(tzinfo=dt.UTC) if at.tzinfo is None else at


def _page(
    template: str,
    session: Session | None,
    *,
    service: Service | None = None,
    status: int = 200,
    **values: Any,
) -> Response:
    who = log_out_token = None
    if session is not None and service is not None:
        person = session.identity
        who = (
            "local mode"
            if person.local
            else f"{visible(shortened(person.subject_id, 40))} · tenant {person.tenant_id[:8]}"
        )
        log_out_token = None if person.local else session.form_token("logout")
    text = _TEMPLATES.get_template(template).render(
        style=_style()[0], who=who, log_out=log_out_token, **values
    )
    # Text in a log may hold half characters; a page shows them and must not fail on them.
    return HTMLResponse(
        text.encode("utf-8", "replace"), status, headers={"Cache-Control": "no-store"}
    )
