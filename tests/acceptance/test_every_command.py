"""What holds for every command of both programs: readers that leave, Ctrl-C, --json.

The commands are read from the programs' own trees: one that is new fails here until it has a row.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg import sql

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from forked_commands import Shell

from cuo_checkpoint import archive, archive_cli
from cuo_checkpoint.local import local_database
from cuo_supervisor.cli.main import cli
from cuo_supervisor.identity import LOCAL_TENANT_ID

pytestmark = pytest.mark.slow

PROGRAMS = {"cyberos-cuo": cli, "cuo-archive": archive_cli.cli}
TABLES = (
    "cuo_threads, cuo_runs, cuo_langgraph_checkpoints, cuo_langgraph_writes, cuo_memory_audit,"
    " cuo_holds"
)

UNSEALED = "no head was signed when this was exported: nothing here is sealed"

WITHOUT_JSON = {
    "cyberos-cuo completion": "a shell reads it",
    "cuo-archive metrics": "Prometheus reads it",
}


class Row(NamedTuple):
    """A call with a result to print. Words in capitals name what the fixture made."""

    words: str
    code: int = 0
    database: bool = False
    """Whether it waits while somebody holds the log's tables."""


ROWS = {
    "cyberos-cuo supervisor route": Row("--query INVOICE", 1, database=True),
    "cyberos-cuo supervisor resume": Row("WAITING --deny --reason no", 4, database=True),
    "cyberos-cuo supervisor continue": Row("RUN", 1, database=True),
    "cyberos-cuo supervisor expire": Row("RUN", 65, database=True),
    "cyberos-cuo supervisor replay": Row("RUN", database=True),
    "cyberos-cuo supervisor skills": Row("--run RUN", database=True),
    "cyberos-cuo supervisor personas": Row(""),
    "cyberos-cuo supervisor graph": Row(""),
    "cyberos-cuo runs list": Row("", database=True),
    "cyberos-cuo runs show": Row("RUN", database=True),
    "cyberos-cuo runs verify": Row("RUN", database=True),
    "cyberos-cuo runs export": Row("RUN --out NEW", database=True),
    "cyberos-cuo runs import-langgraph": Row("--from STOCK"),
    "cyberos-cuo serve": Row("--port 0"),
    "cyberos-cuo doctor": Row(""),
    "cyberos-cuo completion": Row("bash"),
    "cuo-archive ensure-partitions": Row(""),
    "cuo-archive status": Row("", database=True),
    "cuo-archive verify": Row("--tenant TENANT", database=True),
    "cuo-archive seal": Row("SEALED", database=True),
    "cuo-archive export": Row("--run RUN --tenant TENANT --out NEW", database=True),
    "cuo-archive metrics": Row("", database=True),
    "cuo-archive drop-old-partitions": Row("--dry-run"),
    "cuo-archive rebuild-index": Row("--apply", database=True),
    "cuo-archive expire-approvals": Row("", database=True),
    "cuo-archive hold set": Row("--tenant TENANT --reason why", database=True),
    "cuo-archive hold release": Row("HOLD --tenant TENANT --reason why", database=True),
    "cuo-archive hold list": Row("", database=True),
    "cuo-archive keys new": Row("NEW --name me"),
    "cuo-archive keys rotate": Row("KEY --name me"),
    "cuo-archive keys retire": Row("KEYS ID"),
    "cuo-archive keys distrust": Row("KEYS ID"),
    "cuo-archive keys public": Row("KEY"),
}


def leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Every command below this one that does something."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    ctx = click.Context(command)
    for part in command.list_commands(ctx):
        found = command.get_command(ctx, part)
        assert found is not None, part
        yield from leaves(f"{name} {part}", found)


FOUND = {
    name: command for program in PROGRAMS for name, command in leaves(program, PROGRAMS[program])
}


def takes_json(command: click.Command) -> bool:
    return any("--json" in param.opts for param in command.params)


def test_every_command_has_a_row() -> None:
    """None is forgotten below, and no row outlives its command."""
    assert ROWS.keys() == FOUND.keys()


def test_every_command_takes_json() -> None:
    """But the few whose output another program reads in its own form."""
    assert {name for name in FOUND if not takes_json(FOUND[name])} == WITHOUT_JSON.keys()
    for name in WITHOUT_JSON:
        assert "no --json" in " ".join((FOUND[name].help or "").split())


def test_every_command_teaches_by_example() -> None:
    """`--help` ends with calls that can be typed."""
    for name, command in FOUND.items():
        assert f"  {name}" in (command.epilog or ""), name


def test_every_text_is_utf8() -> None:
    """No command takes other bytes for a text: they would be stored, or end in a fault."""
    for name, command in FOUND.items():
        for param in command.params:
            assert param.type is not click.STRING, (name, param.name)
            if isinstance(param.type, click.types.StringParamType):
                with pytest.raises(click.BadParameter, match="UTF-8"):
                    param.type.convert("ab\udcff", param, None)
                latin = "gửi".encode().decode("ascii", "surrogateescape")
                assert param.type.convert(latin, param, None) == "gửi"


@dataclasses.dataclass
class Commands:
    """Calls each row, with what it names."""

    shells: dict[str, Shell]
    known: dict[str, Callable[[], str]]

    def told(self, name: str) -> list[str]:
        """The row's words, what they name made."""
        return [self.known[w]() if w in self.known else w for w in ROWS[name].words.split()]

    def start(self, name: str, told: list[str], **options: Any) -> Any:
        program, *path = name.split()
        before = ["--local"] if program == "cuo-archive" else []
        return self.shells[program].start(*before, *path, *told, **options)


@pytest.fixture(scope="module")
def log(data_dir: Path) -> Iterator[Any]:
    """The session's database, and in it a stock saver's. Whatever is done to it, it holds."""
    with local_database(data_dir=data_dir) as server:
        with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
            conn.execute("CREATE DATABASE stock")
        yield server
        report = archive.verify(server.auditor_dsn, schema="public")
        assert report.ok, report.to_json()


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where the seal's key and the exported heads are, for the whole module."""
    folder = tmp_path_factory.mktemp("seal")
    return {"CUO_SEAL_KEY": str(folder / "seal.key"), "CUO_EXPORT_DIR": str(folder)}


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """What is made once, by name."""
    return {}


@pytest.fixture
def commands(
    log: Any,
    data_dir: Path,
    tmp_path: Path,
    command_server: socket.socket,
    sealed: dict[str, str],
    made: dict[str, str],
) -> Commands:
    env = {
        "HOME": str(tmp_path),
        "CUO_DATA_DIR": str(data_dir),
        "CYBEROS_AI_GATEWAY_URL": "http://127.0.0.1:9",
    }
    cuo, care = (Shell(env, command_server, program) for program in PROGRAMS)
    key = tmp_path / "my.key"

    def once(name: str, make: Callable[[], str]) -> Callable[[], str]:
        def known() -> str:
            if name not in made:
                made[name] = make()
            return made[name]

        return known

    def stock() -> str:
        dsn = str(log.dsn("postgres", "stock"))
        with PostgresSaver.from_conn_string(dsn) as saver:
            saver.setup()
        return dsn

    def run(query: str, persona: str) -> str:
        return str(cuo.route(query, "--persona", persona, "--json").json["request_id"])

    def tenant() -> str:
        known["RUN"]()  # a tenant of whom the log has nothing can have no hold
        return LOCAL_TENANT_ID

    def hold() -> str:
        words = ("hold", "set", "--tenant", tenant(), "--reason", "x")
        return care("--local", *words).out.strip()

    def new_key() -> str:
        assert care("keys", "new", str(key), "--name", "me").code == 0
        return str(key)

    def two_keys() -> str:
        words = ("keys", "rotate", new_key(), "--name", "next", "--out", str(tmp_path / "note"))
        assert care(*words).code == 0
        return str(key)

    def seal() -> str:
        care.env |= sealed
        if not Path(sealed["CUO_SEAL_KEY"]).exists():
            assert care("keys", "new", sealed["CUO_SEAL_KEY"], "--name", "me").code == 0
        return "--all"

    known: dict[str, Callable[[], str]] = {
        "INVOICE": lambda: "send invoice",
        "RUN": once("RUN", lambda: run("send invoice", "genie")),
        "WAITING": lambda: run("transfer 5M VND to ACME account 0123456789", "coo"),
        "TENANT": tenant,
        "NEW": lambda: str(tmp_path / "new"),
        "STOCK": once("STOCK", stock),
        "HOLD": hold,
        "KEY": new_key,
        "KEYS": two_keys,
        "ID": lambda: care("keys", "public", str(key)).out.split("+")[1],
        "SEALED": seal,
    }
    return Commands({"cyberos-cuo": cuo, "cuo-archive": care}, known)


def ended(commands: Commands, process: Any) -> tuple[int, str]:
    """Exit code and what was said on stderr; nothing of it may be the interpreter's.

    No command here needs the model client, and none loads it.
    """
    said = commands.shells["cyberos-cuo"].end(process)
    for word in ("Traceback", "BrokenPipe", "Exception ignored", "Broken pipe", "model client"):
        assert word not in said.err
    return said.code, said.err


@pytest.mark.sweep
@pytest.mark.parametrize("name", ROWS)
def test_a_reader_that_leaves_changes_nothing(commands: Commands, name: str) -> None:
    """`| head -1`: the command does its work and ends with its own code."""
    near, far = os.pipe()
    os.close(near)
    with open(far, "wb") as gone, commands.start(name, commands.told(name), stdout=gone) as process:
        if name == "cyberos-cuo serve":
            assert any(b"service.listening" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
        code, said = ended(commands, process)
    expected = 64 if name == "cuo-archive keys rotate" else ROWS[name].code
    assert code == expected, said
    if name == "cuo-archive keys rotate":  # the note can be had only now
        assert "no key was added" in said


@pytest.mark.sweep
@pytest.mark.parametrize("name", ROWS)
def test_ctrl_c_while_nobody_reads(commands: Commands, name: str, tmp_path: Path) -> None:
    """Blocked in a full pipe, a command ends at once, with 130; what it wrote is whole."""
    near, far = os.pipe()
    fcntl.fcntl(far, fcntl.F_SETPIPE_SZ, 4096)
    os.write(far, b"x" * 4096)
    told = commands.told(name) + (["--json"] if takes_json(FOUND[name]) else [])
    with (
        open(near, "rb"),
        open(far, "wb") as full,
        commands.start(name, told, stdout=full) as process,
    ):
        if name == "cyberos-cuo serve":
            assert any(b"service.listening" in line for line in process.stderr)
        else:
            until_it_waits(process.pid)
        process.send_signal(signal.SIGINT)
        code, said = ended(commands, process)
    if name == "cyberos-cuo serve":
        assert code == 0, said  # this is how it is asked to end
        return
    assert code == 130, said
    assert "nterrupted" in said
    made = tmp_path / "new"
    if made.is_dir():
        check = [sys.executable, "-I", made / "verify.py", made, "--json"]
        done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
        # Whether something was sealed before is another test's doing; all else must be there.
        assert set(json.loads(done.stdout)["problems"]) <= {UNSEALED}, done.stdout


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.database])
def test_ctrl_c_amid_the_databases_work(
    commands: Commands, log: Any, name: str, tmp_path: Path
) -> None:
    """130 while the log's tables are held by somebody, and nothing half-written afterwards."""
    with psycopg.connect(log.owner_dsn) as conn:
        # What it names is made before the tables are held.
        told = commands.told(name)
        conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(TABLES)))
        with commands.start(name, told) as process:
            until_it_waits(process.pid)
            process.send_signal(signal.SIGINT)
            code, said = ended(commands, process)
        conn.rollback()
    assert code == 130, said
    assert not (tmp_path / "new").exists()
    assert list(tmp_path.glob("**/*.tmp")) == []


def until_it_waits(pid: int, seconds: float = 40) -> None:
    """Until the process has slept for a while without computing anything."""
    until, still, before = time.monotonic() + seconds, 0, ""
    while still < 8:
        assert time.monotonic() < until, "it never waited"
        time.sleep(0.05)
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return
        spent = " ".join(fields[11:13])
        still = still + 1 if fields[0] == "S" and spent == before else 0
        before = spent


IMPORTING = """
import importlib, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
sys.argv = [{program!r}, *{words!r}]
module, _, function = {entry!r}.partition(":")
sys.exit(getattr(importlib.import_module(module), function)())
"""


@pytest.mark.parametrize(
    ("program", "module", "words"),
    [
        ("cyberos-cuo", "click", ["--help"]),
        ("cyberos-cuo", "psycopg", ["runs", "list"]),
        ("cuo-archive", "click", ["--help"]),
        ("cuo-archive", "psycopg", ["--local", "status"]),
    ],
)
def test_ctrl_c_while_a_command_is_imported(
    program: str, module: str, words: list[str], tmp_path: Path
) -> None:
    """From the first import on there is no traceback."""
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    given = IMPORTING.format(
        module=module, program=program, words=words, entry=scripts["scripts"][program]
    )
    done = subprocess.run(
        [sys.executable, "-c", given],
        env={"PATH": os.environ["PATH"], "CUO_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
