"""The small process that stands between the supervisor and one skill, and outlives it by nothing.

Run as a script: `python -I -S sandbox_keeper.py key=value ... -- argv...`. It starts argv with
limits set, waits for the skill, the deadline, or for the supervisor to let go of the control
pipe, kills every process the skill left, writes one status line and ends.

Why a process of its own: limits must be set between fork and exec, which is only safe in a
program with one thread; and a skill's orphans come back to the nearest *subreaper*, so with one
keeper per skill they are found whatever they did (setsid, double fork, an emptied environment).
Where the kernel allows it the skill also gets its own pid, network, ipc, uts and mount
namespaces: it cannot see or signal the keeper, and the kernel ends the tree in one act.

Imports the standard library only, and little of it: start-up time is paid per skill.

Status line: `<how> <code> <isolation>`, how one of exit, signal, exec (code is an errno),
timeout, killed, crowd (too many processes), broken. No status line: the keeper was killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:  # `import typing` would cost as much as the rest of this module
    from typing import NoReturn

__all__ = ["descendants", "kill_tree", "main"]

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8

_POLL_S = 0.1
"""How often the number of processes is counted. RLIMIT_NPROC does not bind root, this does."""
_NICE = 5
"""Skills yield to the keeper and the supervisor, which must still act while one misbehaves."""
_CLEAN_UP_S = 5.0
"""How long survivors are chased; only a process stuck inside the kernel takes longer."""


def _libc() -> ctypes.CDLL | None:
    """The C library on Linux, else None: nothing below exists elsewhere."""
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _table() -> dict[int, list[tuple[int, int]]]:
    """Children by parent pid, each with its process group. Empty where there is no /proc."""
    children: dict[int, list[tuple[int, int]]] = {}
    try:
        entries = os.listdir("/proc")
    except OSError:
        return children
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # ended while we looked
        # The name in brackets may itself hold brackets and spaces: count from the last one.
        fields = stat[stat.rindex(b")") + 2 :].split()
        children.setdefault(int(fields[1]), []).append((int(entry), int(fields[2])))
    return children


def descendants(root: int) -> dict[int, int]:
    """Every process below `root`, zombies included, with its process group."""
    children = _table()
    found: dict[int, int] = {}
    queue = [root]
    while queue:
        for pid, group in children.get(queue.pop(), ()):
            if pid not in found:
                found[pid] = group
                queue.append(pid)
    return found


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue  # already gone


def kill_tree(root: int, *, reap: bool, budget_s: float = _CLEAN_UP_S) -> int:
    """Kill everything below `root`; returns how many survived.

    Whole process groups first: the kernel signals a group in one act that no fork can slip
    through, so a bomb dies at once where killing one by one would race with its next fork.
    What made itself a group is then stopped before it is killed, for the same reason: a
    stopped process does not fork, so the set stops growing. `reap` collects zombies and is
    for the keeper only, whose children they are.
    """
    deadline = time.monotonic() + budget_s
    stopped: set[int] = set()
    own = {os.getpgrp(), os.getpgid(root)}
    while time.monotonic() < deadline:
        if reap:
            _reap()
        alive = descendants(root)
        if not alive:
            return 0
        _signal_all((-group for group in {*alive.values()} - own if group > 1), signal.SIGKILL)
        fresh = alive.keys() - stopped
        _signal_all(fresh, signal.SIGSTOP)
        if not fresh:
            _signal_all(alive, signal.SIGKILL)
            time.sleep(0.002)
        stopped = stopped & alive.keys() | fresh
    left = descendants(root)
    _signal_all(left, signal.SIGKILL)
    return len(left)


def _reap() -> dict[int, int]:
    """Collect ended children: pid to wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def _write_file(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _enter_namespaces(libc: ctypes.CDLL) -> bool:
    """Leave the shared namespaces; the next fork is process 1 of a new one. False if refused."""
    flags = _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS
    if libc.unshare(flags) == 0:
        return True
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(flags | _CLONE_NEWUSER) != 0:
        return False
    _write_file("/proc/self/setgroups", "deny")
    _write_file("/proc/self/uid_map", f"{uid} {uid} 1")
    _write_file("/proc/self/gid_map", f"{gid} {gid} 1")
    return True


def _own_proc(libc: ctypes.CDLL) -> bool:
    """Mount a /proc of this namespace, so that the environment of other processes is out of sight.

    Container runtimes that mask parts of /proc make the kernel refuse; then the skill must not
    run here, since the old /proc would show what the new namespace hides.
    """
    # Not with the other namespaces: the keeper needs the outer /proc to count processes.
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False
    if libc.mount(None, b"/", None, _MS_REC_PRIVATE, None) != 0:
        return False
    return bool(libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV_NOEXEC, None) == 0)


def _threads_of_user() -> int:
    """Tasks of this real uid on the machine: what the kernel compares RLIMIT_NPROC with."""
    uid, count = os.getuid(), 0
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            try:
                if os.stat(f"/proc/{entry}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{entry}/task"))
            except OSError:
                continue
    return count


def _limit(kind: int, soft: int, hard: int) -> None:
    """Lower a limit; an inherited hard limit that is lower still stays."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def _exec_skill(
    argv: list[str], options: dict[str, str], report: int, libc: ctypes.CDLL | None
) -> NoReturn:
    """In the child: session, limits, signals, privileges, then exec. Does not return."""
    os.setsid()
    os.nice(_NICE)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these two, and an ignored signal stays ignored across exec.
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    cpu = int(options["cpu"])
    _limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    for kind, key in (
        (resource.RLIMIT_AS, "memory"),
        (resource.RLIMIT_FSIZE, "file"),
        (resource.RLIMIT_NOFILE, "descriptors"),
        (resource.RLIMIT_NPROC, "tasks"),
    ):
        _limit(kind, int(options[key]), int(options[key]))
    _limit(resource.RLIMIT_CORE, 0, 0)
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if options["drop"] == "1":
            for capability in range(64):
                libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    try:
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(report, f"e {error.errno or errno.EIO}\n".encode())
    os._exit(127)


def _be_init(argv: list[str], options: dict[str, str], report: int, libc: ctypes.CDLL) -> NoReturn:
    """Process 1 of the namespace: start the skill, reap for it, report, end. Does not return.

    The skill itself is not process 1, because that one is immune to its own signals: a skill
    that aborts would seem to hang or exit. When this ends the kernel kills all that is left.
    """
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not _own_proc(libc):
        os.write(report, b"n 0\n")
        os._exit(0)
    skill = os.fork()
    if skill == 0:
        _exec_skill(argv, options, report, libc)
    _silence()
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == skill:
            os.write(report, f"w {status}\n".encode())
            os._exit(0)


def _silence() -> None:
    """Let go of the skill's three streams, so that their ends are the skill's alone."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _come_first() -> None:
    """Let the keeper run before any ordinary process, where it has the right to ask.

    That is as root, whom RLIMIT_NPROC does not bind: a skill may then start hundreds of
    processes between two looks, each in a session of its own with a fair share of the
    processor, and the keeper would wait its turn among them. Children start out ordinary.
    """
    if sys.platform == "linux":
        try:
            policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(0, policy, os.sched_param(1))
        except OSError:
            return


def _parse(words: list[str]) -> tuple[dict[str, str], list[str]]:
    split = words.index("--")
    return dict(word.split("=", 1) for word in words[:split]), words[split + 1 :]


def _verdict(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit {os.WEXITSTATUS(status)}"


def _keep(
    options: dict[str, str], argv: list[str], libc: ctypes.CDLL | None, namespaces: bool
) -> str:
    """Start the skill and stay until it, the deadline or the supervisor ends it."""
    control, crowd = int(options["control"]), int(options["crowd"])
    reader, writer = os.pipe()
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    # A handler must exist for the wake-up descriptor to be written at all.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    deadline = time.monotonic() + float(options["timeout"])
    next_count = time.monotonic() + _POLL_S
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        if namespaces and libc is not None:
            _be_init(argv, options, writer, libc)
        _exec_skill(argv, options, writer, libc)
    os.close(writer)
    _silence()
    verdict = ""
    while not verdict:
        left = deadline - time.monotonic()
        if left <= 0:
            verdict = "timeout 9"
            break
        ready, _, _ = select.select([control, woken], [], [], min(left, _POLL_S))
        if control in ready:
            verdict = "killed 9"
        if woken in ready:
            os.read(woken, 512)
        ended = _reap()
        if child in ended:
            verdict = _verdict(ended[child])
        elif not verdict and time.monotonic() >= next_count:
            next_count = time.monotonic() + _POLL_S
            if len(descendants(os.getpid())) > crowd:
                verdict = "crowd 9"
    # With namespaces this one act ends the tree: process 1 goes, and all it holds with it.
    _signal_all([-child, child], signal.SIGKILL)
    kill_tree(os.getpid(), reap=True)
    os.set_blocking(reader, False)
    try:
        said = os.read(reader, 64).split()
    except BlockingIOError:
        said = []  # a survivor stuck in the kernel still holds the other end
    if said[:1] == [b"e"]:
        return f"exec {int(said[1])}"
    if said[:1] == [b"n"]:
        return "refused 0"
    if said[:1] == [b"w"] and verdict.startswith("exit"):
        return _verdict(int(said[1]))
    return verdict


def main(words: list[str]) -> int:
    """Keep one skill; see the module's text for the arguments and the status line."""
    options, argv = _parse(words)
    status = int(options["status"])
    for fd in (status, int(options["control"])):
        os.set_inheritable(fd, False)
    isolation, verdict = "none", "broken 0"
    try:
        libc = _libc()
        _come_first()
        options["tasks"] = str(int(options["crowd"]) + _threads_of_user())
        namespaces = False
        if libc is not None:
            if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
                isolation = "subreaper"
            if options["namespaces"] == "1" and _enter_namespaces(libc):
                namespaces, isolation = True, "namespaces"
        verdict = _keep(options, argv, libc, namespaces)
    except Exception as error:  # the status line is the only voice this process has
        kill_tree(os.getpid(), reap=True)
        verdict = f"broken {getattr(error, 'errno', 0) or 0}"
    os.write(status, f"{verdict} {isolation}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
