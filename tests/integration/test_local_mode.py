"""The local mode on the real embedded server, as commands use it: several at once, and killed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from cuo_checkpoint import migrate
from cuo_checkpoint.errors import SchemaNotReady, StoreUnavailable
from cuo_checkpoint.local import LocalServer, local_database

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made_once() -> Iterator[Path]:
    """A data folder after its first use: making one takes seconds, copying it none."""
    with tempfile.TemporaryDirectory(prefix="cuo-") as folder:
        Path(folder).chmod(0o711)
        with LocalServer(Path(folder) / "data"):
            pass
        yield Path(folder) / "data"


@pytest.fixture
def fresh_dir(open_tmp_path: Path) -> Path:
    """A folder that does not exist yet, with a space in its name as home folders have."""
    return open_tmp_path / "data of me"


@pytest.fixture
def data_dir(made_once: Path, fresh_dir: Path) -> Path:
    """A folder that has been used before (and lay elsewhere then)."""
    subprocess.run(["cp", "-a", str(made_once), str(fresh_dir)], check=True)
    return fresh_dir


@pytest.fixture
def command(data_dir: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process that uses the local server: it says "up", then does as its body says."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str = "sys.stdin.read()") -> subprocess.Popen[str]:
        program = f"""
            import os, sys, time
            from pathlib import Path
            from cuo_checkpoint.local import LocalServer
            with LocalServer(Path({str(data_dir)!r})) as server:
                print("up", flush=True)
                {body}
        """
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def postmaster(data_dir: Path) -> int | None:
    """The server's process id, or None once it has stopped in order."""
    try:
        return int((data_dir / "pgdata" / "postmaster.pid").read_text().split()[0])
    except FileNotFoundError:
        return None


def eventually(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether `true` comes to hold in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return False


def read_up(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n", child.communicate()[1]


def test_first_use_makes_a_migrated_durable_database_without_a_port(fresh_dir: Path) -> None:
    """From nothing: migrated, fsync on, UTC, UTF-8, and no TCP port."""
    with local_database(data_dir=fresh_dir) as server:
        assert migrate.current(server.owner_dsn) == migrate.head()
        with psycopg.connect(server.app_dsn) as conn:
            found = {
                name: conn.execute("SELECT current_setting(%s)", [name]).fetchone()
                for name in ("listen_addresses", "fsync", "timezone", "server_encoding")
            }
    assert found == {
        "listen_addresses": ("",),
        "fsync": ("on",),
        "timezone": ("UTC",),
        "server_encoding": ("UTF8",),
    }


def test_no_service_role_escapes_row_security(data_dir: Path) -> None:
    """Owner and service roles are neither superusers, nor exempt, nor able to make roles."""
    with LocalServer(data_dir) as server, psycopg.connect(server.admin_dsn) as conn:
        rows = conn.execute(
            "SELECT rolname, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb FROM pg_roles "
            "WHERE rolname LIKE 'cyberos%' ORDER BY rolname"
        ).fetchall()
    names = ("cyberos_app", "cyberos_archiver", "cyberos_auditor", "cyberos_owner")
    assert rows == [(name, False, False, False, False) for name in names]


def test_folders_are_closed_to_others(data_dir: Path) -> None:
    """Whoever reaches the socket is trusted, so only the data's owner may reach it."""
    with LocalServer(data_dir) as server:
        modes = {p.name: p.stat().st_mode & 0o777 for p in (server.socket_dir, data_dir / "pgdata")}
        locks = [(data_dir / name).stat().st_mode & 0o777 for name in ("start.lock", "users.lock")]
    assert modes == {"socket": 0o700, "pgdata": 0o700}
    assert locks == [0o600, 0o600]


def test_data_outlives_the_server(data_dir: Path) -> None:
    """The server stops with its last user and the next one finds what was committed."""
    with LocalServer(data_dir) as server, psycopg.connect(server.owner_dsn) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    assert postmaster(data_dir) is None
    with LocalServer(data_dir) as server, psycopg.connect(server.owner_dsn) as conn:
        assert conn.execute("SELECT n FROM kept").fetchone() == (7,)


def test_a_moved_data_folder_still_works(data_dir: Path) -> None:
    """Nothing in the folder remembers where the folder was."""
    with LocalServer(data_dir) as server, psycopg.connect(server.owner_dsn) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    moved = data_dir.rename(data_dir.with_name("elsewhere"))
    with LocalServer(moved) as server, psycopg.connect(server.owner_dsn) as conn:
        assert conn.execute("SELECT n FROM kept").fetchone() == (7,)


@pytest.mark.parametrize("name", ["d" * 120, "with, comma", "with 'quotes'", "ổ đĩa"])
def test_any_folder_name_will_do(data_dir: Path, name: str) -> None:
    """Names too long or too odd for a socket address get their socket elsewhere, still private."""
    with LocalServer(data_dir.rename(data_dir.with_name(name))) as server:
        with psycopg.connect(server.app_dsn) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
        assert server.socket_dir.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_concurrent_first_commands_share_one_server(
    data_dir: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    """Five commands on a folder that does not exist yet: all get in, one server, none left over."""
    shutil.rmtree(data_dir)
    children = [command() for _ in range(5)]
    for child in children:
        read_up(child)
    first = postmaster(data_dir)
    for child in children[:-1]:
        assert child.communicate()[1] == ""
    assert postmaster(data_dir) == first
    assert first is not None
    assert children[-1].communicate()[1] == ""
    assert postmaster(data_dir) is None


@pytest.mark.slow
def test_joining_while_the_last_user_leaves_never_loses_the_server(
    data_dir: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    """Commands that come and go at the same moment each see a working server."""
    body = (
        "import psycopg\n                "
        'with psycopg.connect(server.app_dsn) as c: c.execute("SELECT pg_sleep(0.02)")'
    )
    running: list[subprocess.Popen[str]] = []
    for _ in range(12):
        running.append(command(body))
        time.sleep(0.15)
    for child in running:
        assert child.communicate(timeout=60)[1] == ""
        assert child.returncode == 0
    assert postmaster(data_dir) is None


@pytest.mark.slow
def test_a_killed_command_leaves_no_server_behind(
    data_dir: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    """After kill -9 of the last user the keeper stops the server in order."""
    child = command()
    read_up(child)
    child.kill()
    child.wait()
    assert eventually(lambda: postmaster(data_dir) is None)


@pytest.mark.slow
def test_an_interrupted_command_stops_its_server(
    data_dir: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    """Ctrl-C reaches the whole process group; the server ends in order, not by the signal."""
    # Where the whole run was started in the background, its children ignore SIGINT from birth.
    child = command(
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); time.sleep(60)"
    )
    read_up(child)
    time.sleep(0.5)
    os.killpg(child.pid, signal.SIGINT)
    child.communicate(timeout=30)
    assert postmaster(data_dir) is None
    log = (data_dir / "log" / "postgresql.log").read_text()
    assert "not properly shut down" not in log
    with LocalServer(data_dir):
        assert "not properly shut down" not in (data_dir / "log" / "postgresql.log").read_text()


@pytest.mark.slow
def test_a_forked_child_keeps_the_server(
    data_dir: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    """A process that forked and left does not take the server from its child."""
    child = command("os.fork() or time.sleep(3)")
    read_up(child)
    assert eventually(lambda: b"\0" in Path(f"/proc/{child.pid}/cmdline").read_bytes())
    time.sleep(1)
    with LocalServer(data_dir) as server, psycopg.connect(server.app_dsn) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)
    child.communicate(timeout=30)
    assert eventually(lambda: postmaster(data_dir) is None)


@pytest.mark.slow
def test_a_killed_server_recovers(data_dir: Path) -> None:
    """kill -9 of the server leaves its pid file; the next command starts it and finds the data."""
    with LocalServer(data_dir) as server:
        with psycopg.connect(server.owner_dsn) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
        pid = postmaster(data_dir)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert postmaster(data_dir) == pid
    with LocalServer(data_dir) as server, psycopg.connect(server.owner_dsn) as conn:
        assert conn.execute("SELECT n FROM kept").fetchone() == (7,)


def test_a_pid_file_that_now_names_another_program_is_no_obstacle(data_dir: Path) -> None:
    """Process ids start again in a new container; an old pid file may name anybody."""
    with LocalServer(data_dir):
        pid_file = data_dir / "pgdata" / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        owner = pid_file.stat()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    os.chown(pid_file, owner.st_uid, owner.st_gid)
    with LocalServer(data_dir) as server, psycopg.connect(server.app_dsn) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_a_half_made_cluster_is_made_anew(fresh_dir: Path) -> None:
    """A first run killed inside initdb leaves nothing that a second one trips over."""
    fresh_dir.mkdir(mode=0o711)
    making = fresh_dir / "pgdata.making"
    making.mkdir()
    (making / "PG_VERSION").write_text("18\n")
    with LocalServer(fresh_dir) as server, psycopg.connect(server.app_dsn) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)
    assert not making.exists()


def test_a_folder_that_cannot_be_made_is_a_sentence(open_tmp_path: Path) -> None:
    """A data folder below a plain file (for root, as a read-only home for others)."""
    (open_tmp_path / "file").write_text("")
    with (
        pytest.raises(StoreUnavailable, match="Set CUO_DATA_DIR to a folder you can write"),
        local_database(data_dir=open_tmp_path / "file" / "data"),
    ):
        pass


def test_a_name_that_postgresql_cannot_quote_is_a_sentence(open_tmp_path: Path) -> None:
    """initdb and pg_ctl pass names through a shell; such a name never gets that far."""
    with (
        pytest.raises(StoreUnavailable, match="dollar sign"),
        LocalServer(open_tmp_path / "$(touch x)"),
    ):
        pass
    latin = os.fsdecode(os.fsencode(open_tmp_path) + b"/d\xe9p\xf4t")
    with pytest.raises(StoreUnavailable, match="not UTF-8"), LocalServer(Path(latin)):
        pass
    assert not list(open_tmp_path.iterdir())


def test_a_disk_without_room_is_a_sentence(data_dir: Path) -> None:
    """The folder is named, and no lock stays held."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(
                StoreUnavailable, match=r"data of me cannot be used: File too large"
            ):
                LocalServer(data_dir).start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_another_major_version_s_data_is_a_sentence(data_dir: Path) -> None:
    """Data of another PostgreSQL is left alone and the way out is named."""
    with LocalServer(data_dir):
        pass
    (data_dir / "pgdata" / "PG_VERSION").write_text("12\n")
    with (
        pytest.raises(StoreUnavailable, match=r"made by PostgreSQL 12.*pg_dump"),
        LocalServer(data_dir),
    ):
        pass


def test_a_server_that_does_not_start_says_why(data_dir: Path) -> None:
    """The server's own reason is passed on, and no lock stays held."""
    with LocalServer(data_dir):
        pass
    (data_dir / "pgdata" / "global" / "pg_control").unlink()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"does not start: .*could not find the data"):
            LocalServer(data_dir).start()
    assert postmaster(data_dir) is None


def test_a_newer_version_s_database_is_refused(data_dir: Path) -> None:
    """A revision this version does not know is neither migrated nor used."""
    with local_database(data_dir=data_dir) as server, psycopg.connect(server.owner_dsn) as conn:
        conn.execute("UPDATE cuo_alembic_version SET version_num = '9999'")
    with (
        pytest.raises(SchemaNotReady, match="9999, which this version does not know"),
        local_database(data_dir=data_dir),
    ):
        pass


def test_the_log_holds_no_values(data_dir: Path) -> None:
    """Errors are logged without the statement and without the DETAIL that quotes a row."""
    with LocalServer(data_dir) as server, psycopg.connect(server.owner_dsn, autocommit=True) as c:
        c.execute("CREATE TABLE once (name text PRIMARY KEY)")
        c.execute("INSERT INTO once VALUES ('Nguyen Van A')")
        with pytest.raises(psycopg.errors.UniqueViolation):
            c.execute("INSERT INTO once VALUES ('Nguyen Van A')")
    log = (data_dir / "log" / "postgresql.log").read_text()
    assert "duplicate key" in log
    assert "Nguyen" not in log


@pytest.mark.slow
def test_an_ordinary_user_needs_no_rights(open_tmp_path: Path) -> None:
    """The same as an unprivileged account, where this run may become one."""
    if os.geteuid() != 0:
        pytest.skip("this run is an ordinary user's already")
    open_tmp_path.chmod(0o777)
    program = """
        import json, sys
        from pathlib import Path
        from cuo_checkpoint.local import local_database
        import psycopg
        with local_database(data_dir=Path(sys.argv[1])) as server:
            with psycopg.connect(server.app_dsn) as conn:
                print(json.dumps(conn.execute("SELECT current_user::text").fetchone()))
    """
    if not as_nobody("import cuo_checkpoint.local"):
        pytest.skip("this Python lies in a folder closed to other accounts")
    done = as_nobody(textwrap.dedent(program), str(open_tmp_path / "data"))
    assert done
    assert json.loads(done) == ["cyberos_app"]


def as_nobody(program: str, *args: str) -> str | None:
    """What `program` prints as an unprivileged account; None if it cannot run or fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", program + "\nprint()", *args],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            user=65534,
            group=65534,
            extra_groups=[],
        )
    except PermissionError:
        return None
    return done.stdout if done.returncode == 0 else None
