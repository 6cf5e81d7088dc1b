"""The systemd units in `scripts/`, as systemd itself reads them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cuo_supervisor.sandbox import FIXED_PATH, bubblewrap_command

SCRIPTS = Path(__file__).parents[3] / "scripts"
ANALYZE = shutil.which("systemd-analyze")

UNITS = [
    "cuo-archive.service", "cuo-archive.timer", "cuo-expire-list.service", "cuo-expire.service",
    "cuo-expire.timer", "cuo-seal.service", "cuo-seal.timer", "cyberos-cuo.service",
]  # fmt: skip

BWRAP = shutil.which("bwrap")
IN_THE_WAY = (
    "ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset", "ProtectHostname",
    "RestrictNamespaces", "PrivateUsers",
)  # fmt: skip

analyzed = pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on this machine")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Copies whose programs exist: the real ones are installed elsewhere."""
    for unit in [*SCRIPTS.glob("*.service"), *SCRIPTS.glob("*.timer")]:
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text("utf-8"))
        (tmp_path / unit.name).write_text(text, "utf-8")
    return tmp_path


@analyzed
def test_systemd_finds_no_fault(units: Path) -> None:
    """No unknown directive, no bad value, no missing partner."""
    names = sorted(units.iterdir())
    assert [path.name for path in names] == UNITS
    done = subprocess.run(
        [str(ANALYZE), "verify", *names], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@analyzed
@pytest.mark.parametrize(
    ("unit", "most"),
    [
        ("cyberos-cuo", 3.5),
        ("cuo-archive", 3.0),
        ("cuo-seal", 3.0),
        ("cuo-expire", 3.0),
        ("cuo-expire-list", 3.0),
    ],
)
def test_a_unit_exposes_little(units: Path, unit: str, most: float) -> None:
    """By systemd's own measure, of 10."""
    done = subprocess.run(
        [str(ANALYZE), "security", "--offline=true", "--no-pager", units / f"{unit}.service"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= most


def test_the_service_leaves_its_skills_their_sandbox() -> None:
    """Nothing in the unit keeps bubblewrap from its namespaces, its /proc or its loopback."""
    unit = (SCRIPTS / "cyberos-cuo.service").read_text("utf-8")
    given = dict(re.findall(r"(?m)^(\w+)=(.*)$", unit))
    assert not set(IN_THE_WAY) & set(given)
    assert "AF_NETLINK" in given["RestrictAddressFamilies"].split()
    refused = given["SystemCallFilter"].split()
    assert refused[0].startswith("~")
    assert not {"@mount", "@privileged", "@process"} & {word.lstrip("~") for word in refused}


@pytest.mark.skipif(BWRAP is None or os.geteuid() != 0, reason="needs bubblewrap and root")
@pytest.mark.parametrize(
    ("before", "works"),
    [
        ("mount --bind /sys /sys && mount -o remount,bind,ro /sys", True),  # ReadOnlyPaths=/sys
        ("mount --bind /proc/sys /proc/sys", False),  # ProtectKernelTunables=yes
        ("mount --bind /dev/null /proc/kmsg", False),  # ProtectKernelLogs=yes
    ],
)
def test_why_proc_stays_as_it_is(open_tmp_path: Path, before: str, works: bool) -> None:
    """What systemd mounts for a directive, and whether an account without rights can sandbox then."""
    outbox = open_tmp_path / "outbox"
    outbox.mkdir(mode=0o755)
    sandboxed = bubblewrap_command(
        str(BWRAP), ["/bin/true"], env={"PATH": FIXED_PATH}, outbox=outbox,
        skillset=SCRIPTS, python="/usr/bin/python3",
    )  # fmt: skip
    account = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
    script = f"mount --make-rprivate / && {before} && exec {shlex.join([*account, *sandboxed])}"
    plain = subprocess.run([*account, *sandboxed], capture_output=True, timeout=60, check=False)
    if plain.returncode:
        pytest.skip("this machine's kernel refuses the sandbox anyway")
    apart = ["unshare", "--mount", "sh", "-c"]
    may = "mount --make-rprivate / && mount --bind /dev/null /proc/version"
    if subprocess.run([*apart, may], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    done = subprocess.run([*apart, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) is works, done.stderr
    if not works:
        assert "mount proc" in done.stderr
