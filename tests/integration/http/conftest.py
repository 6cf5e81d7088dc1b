"""A real service on a real socket in server mode, and tokens signed by a key it knows."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ed25519
from pydantic import SecretStr

from cuo_supervisor.compose import Place
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.http import Options, create_app
from cuo_supervisor.http.listening import Impatient
from cuo_supervisor.settings import Settings

ISSUER = "https://auth.example"
AUDIENCE = "cuo"
KEY = ed25519.Ed25519PrivateKey.generate()


@dataclass(frozen=True, slots=True)
class Api:
    """Where a service listens."""

    url: str

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        headers = {**options.pop("headers", {})}
        headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, **options)


def token_for(tenant: str, subject: str = "subject-7", **changes: Any) -> str:
    """A token the service accepts, unless `changes` make it another."""
    now = int(time.time())
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": subject,
        "iat": now,
        "exp": now + 300,
        "tenant_id": tenant,
        "roles": ["agent-persona"],
        "agent_persona": get_persona("cfo").claim,
        **changes,
    }
    return jwt.encode(
        {k: v for k, v in claims.items() if v is not None},
        KEY,
        algorithm="EdDSA",
        headers={"kid": "k"},
    )


@pytest.fixture(scope="session")
def settings_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Settings]:
    """Settings of server mode on a database."""
    folder = tmp_path_factory.mktemp("http")
    public = jwt.algorithms.OKPAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    keys = folder / "jwks.json"
    keys.write_text(json.dumps({"keys": [{**public, "kid": "k", "use": "sig"}]}))

    def make(dsn: str) -> Settings:
        return Settings(
            database_url=SecretStr(dsn),
            jwks=str(keys),
            jwt_issuer=ISSUER,
            jwt_audience=AUDIENCE,
            data_dir=Path(folder),
        )

    return make


@contextlib.contextmanager
def serving(app: Any, protocol: type[Impatient] = Impatient) -> Iterator[Api]:
    """The app behind a real server on a free port, in a thread of this process."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=protocol, lifespan="on", log_level="critical", proxy_headers=False)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        until = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < until, "the service did not start"
            time.sleep(0.01)
        yield Api(f"http://127.0.0.1:{listening.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()


@pytest.fixture(scope="session")
def api(shared_place: Any, settings_for: Callable[[str], Settings]) -> Iterator[Api]:
    """One service for all tests; each test has a tenant of its own."""
    app = create_app(
        settings_for(shared_place.app), Place(shared_place.app, "public"), options=Options()
    )
    with serving(app) as made:
        yield made


@pytest.fixture(scope="session")
def hasty(shared_place: Any, settings_for: Callable[[str], Settings]) -> Iterator[Api]:
    """A service that waits for heads, rests and readers for part of a second only."""
    app = create_app(
        settings_for(shared_place.app), Place(shared_place.app, "public"), options=Options()
    )
    protocol = type("Protocol", (Impatient,), {"seconds": 0.6, "take_seconds": 0.3})
    with serving(app, protocol) as made:
        yield made


@pytest.fixture
def serve_on(settings_for: Callable[[str], Settings]) -> Iterator[Callable[..., Api]]:
    """Starts further services, on other databases or with other options."""
    with contextlib.ExitStack() as stack:

        def start(
            dsn: str,
            *,
            catalog: Path | None = None,
            **options: Any,
        ) -> Api:
            settings = settings_for(dsn).model_copy(update={"catalog": catalog})
            app = create_app(settings, Place(dsn, "public"), options=Options(**options))
            return stack.enter_context(serving(app))

        yield start


@pytest.fixture
def token() -> Callable[..., str]:
    """Makes tokens."""
    return token_for


@pytest.fixture
def client(api: Api, tenant_id: str) -> Iterator[httpx.Client]:
    """A caller of this test's tenant who speaks for the CFO."""
    with api.client(token_for(tenant_id)) as made:
        yield made


@pytest.fixture
def stranger(api: Api, other_tenant_id: str) -> Iterator[httpx.Client]:
    """A caller of another tenant."""
    with api.client(token_for(other_tenant_id)) as made:
        yield made


@pytest.fixture
def approver(api: Api, tenant_id: str) -> Iterator[httpx.Client]:
    """Somebody else of this tenant, who may approve."""
    with api.client(token_for(tenant_id, "boss", roles=["cuo-approver"])) as made:
        yield made
