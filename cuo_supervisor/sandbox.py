"""Which isolation a skill gets on this machine, how bubblewrap is called, what to tell doctor.

Three levels, the best that works is taken and found out once by trying it:

- `bubblewrap`: own pid, network, ipc, uts and mount namespaces; sees the system's programs
  and libraries, Python and the skill set read-only, an empty /tmp, and one writable folder.
- `namespaces`: own pid, network, ipc and uts namespaces and /proc, made by the keeper itself;
  files are those of the account that runs the service.
- `subreaper`: no namespaces. Limits hold and the tree is killed, but a skill that attacks its
  keeper can leave processes behind, can use the network, and can read what the account can.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cuo_supervisor.contained import Limits, keeper_command, parse_status

__all__ = ["FIXED_PATH", "Isolation", "Level", "bubblewrap_command", "find_isolation"]

Level = Literal["bubblewrap", "namespaces", "subreaper"]

FIXED_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_PROBE_S: Final = 10.0
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
_ETC: Final = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
)
_INSTALL_HINT: Final = "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap)"


@dataclass(frozen=True, slots=True)
class Isolation:
    """The level in force, why it is not a better one, and what would make it so."""

    level: Level
    bwrap: str | None
    reason: str
    remedy: str

    @property
    def full(self) -> bool:
        return self.level == "bubblewrap"

    def lines(self) -> list[str]:
        """For people: one line on what holds, and two more when something is missing."""
        text = [f"skill isolation: {self.level}"]
        if self.reason:
            text.append(f"reason: {self.reason}")
        if self.remedy:
            text.append(f"remedy: {self.remedy}")
        return text


def _python_roots(python: str) -> list[str]:
    """Folders an interpreter needs: its own, its environment's, and what their links lead to.

    Only for this program's interpreter are the prefixes known; another one is served by the
    folder above its `bin`, which holds for environments and for most installations.
    """
    located = shutil.which(python, path=FIXED_PATH) or python
    real = Path(located).resolve()
    roots = [Path(located).absolute().parent.parent, real.parent.parent]
    if Path(located).absolute() == Path(sys.executable).absolute():
        roots += [Path(sys.prefix), Path(sys.base_prefix)]
    # A root of "/" would show the whole disk; programs in /bin and /usr/bin need no more.
    return sorted({str(root) for root in roots} - {"/", "/usr", "/usr/local"})


def bubblewrap_command(
    bwrap: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    outbox: Path,
    skillset: Path,
    python: str,
) -> list[str]:
    """`argv` inside bubblewrap. The environment is set again here: the sandbox starts empty."""
    words = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--hostname", "skill", "--proc", "/proc", "--dev", "/dev"]
    words += ["--tmpfs", "/tmp"]  # noqa: S108 - an empty one, inside
    shown = [*_SYSTEM, *_ETC, *_python_roots(python), str(skillset)]
    # Single files the manifest names, such as /opt/acme/skill: the file, not its neighbours,
    # which may be somebody's home. argv comes from the catalogue, never from a request.
    for word in argv:
        path = Path(word)
        if path.is_absolute() and path.is_file() and not any(map(path.is_relative_to, shown)):
            shown.append(word)
    for name in shown:
        words += ["--ro-bind-try", name, name]
    # Last, so that it stays writable when it lies inside one of the folders above.
    words += ["--bind", str(outbox), str(outbox), "--chdir", "/", "--clearenv"]
    for name, value in env.items():
        words += ["--setenv", name, value]
    return [*words, "--", *argv]


def find_isolation(
    bwrap: str | Literal["auto"] | None, *, outbox: Path, skillset: Path, python: str
) -> Isolation:
    """Try the levels, best first. Blocking: up to two short processes."""
    reason, remedy = "", ""
    if bwrap is None:
        reason = "bubblewrap is switched off"
    else:
        located = shutil.which("bwrap" if bwrap == "auto" else bwrap)
        if located is None:
            reason, remedy = "bubblewrap is not installed", _INSTALL_HINT
        else:
            argv = bubblewrap_command(
                located,
                _nothing(python),
                env={"PATH": FIXED_PATH},
                outbox=outbox,
                skillset=skillset,
                python=python,
            )
            trouble = _probe(argv, namespaces=False)
            if not trouble:
                return Isolation("bubblewrap", located, "", "")
            reason = f"bubblewrap does not work here: {trouble}"
            remedy = "allow unprivileged user namespaces (see docs/sandbox.md)"
    if not _probe(_nothing(python), namespaces=True):
        return Isolation("namespaces", None, reason, remedy)
    return Isolation(
        "subreaper",
        None,
        f"{reason}; the kernel refuses new namespaces",
        remedy or "allow unprivileged user namespaces (see docs/sandbox.md)",
    )


def _nothing(python: str) -> list[str]:
    """A command that proves the interpreter starts inside, and does nothing."""
    return [shutil.which(python, path=FIXED_PATH) or python, "-I", "-S", "-c", ""]


def _probe(argv: Sequence[str], *, namespaces: bool) -> str:
    """Run `argv` under the keeper; empty when it worked, else the first line of what went wrong."""
    far_control, near_control = os.pipe()
    near_status, far_status = os.pipe()
    command = keeper_command(
        argv,
        Limits(),
        timeout_s=_PROBE_S,
        namespaces=namespaces,
        drop_capabilities=False,
        control=far_control,
        status=far_status,
    )
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": FIXED_PATH, "LANG": "C.UTF-8"},
            cwd="/",
            pass_fds=(far_control, far_status),
            start_new_session=True,
            timeout=_PROBE_S + 1,
            check=False,
        )
        how, code, level = parse_status(os.read(near_status, 256))
    except (OSError, subprocess.SubprocessError) as error:
        return type(error).__name__
    finally:
        for fd in (far_control, near_control, near_status, far_status):
            os.close(fd)
    if (how, code) == ("exit", 0) and (not namespaces or level == "namespaces"):
        return ""
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return said[0][:200] if said else f"{how} {code}"
