"""The program that starts a browser's driver, and ends all that it started when its own parent is gone.

It runs as a script in a process of its own and imports nothing but the standard library. Its arguments are the command
of the driver, which writes its files into a folder that is removed at the end. It writes the driver's port to stdout,
and ends when stdin closes, when the process that started it is gone, or with the driver.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_SECONDS = 0.5
_KILL_SECONDS = 10.0
_PORT = re.compile(rb"successfully on port (\d+)")

_libc = ctypes.CDLL(None, use_errno=True)


def _children() -> dict[int, list[int]]:
    """Return the child processes of each process on this machine."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                after_name = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            except OSError:  # it ended meanwhile
                continue
            children.setdefault(int(after_name.split()[1]), []).append(int(folder.name))
    return children


def _kill_descendants() -> None:
    """Kill all processes that this one started, including orphans, which have become its own children."""
    end = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < end:
        children = _children()
        waiting = list(children.get(os.getpid(), ()))
        if not waiting:
            return
        while waiting:
            process = waiting.pop()
            waiting += children.get(process, ())
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch(driver: subprocess.Popen[bytes], parent: int) -> None:
    """Write the driver's port to stdout, and wait until stdin closes, the parent is gone, or the driver ends."""
    output = driver.stdout
    if output is None:
        return
    watched, received = [sys.stdin.fileno(), output.fileno()], b""
    while os.getppid() == parent:
        for readable in select.select(watched, [], [], _LOOK_SECONDS)[0]:
            part = os.read(readable, 1 << 16)
            if not part:
                return
            if readable == output.fileno():
                received += part
                if port := _PORT.search(received):
                    os.write(sys.stdout.fileno(), port[1] + b"\n")
                    received = b""


def _main() -> None:
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the parent decides
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = tempfile.mkdtemp(prefix="agentrl-browser-")
    try:
        driver = subprocess.Popen(  # noqa: S603 -- the command of the parent
            sys.argv[1:],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": folder, "HOME": folder},
            preexec_fn=_die_with_parent,  # noqa: PLW1509 -- one call of libc, in a process of one thread
        )
        _watch(driver, parent)
    finally:
        _kill_descendants()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main()
