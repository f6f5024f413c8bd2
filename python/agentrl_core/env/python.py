"""Python as a tool: a model's code runs in a sandboxed process."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

from agentrl_core.env.base import ToolReply
from agentrl_core.env.sandbox import Settings
from agentrl_core.exceptions import AgentRLError, InvalidInputError, UnsupportedError

_MAX_PROCESSES = 16
_MAX_FILES = 64 << 20
_SANDBOX = Path(__file__).with_name("sandbox.py")


@dataclass(frozen=True)
class Python:
    """Tool that runs Python code in a sandbox, and replies with its output, including errors.

    Each call is a fresh process of this interpreter, with its packages, in an empty folder; no state is kept between
    calls. The reply is standard output and error, in the order of writing, truncated to `max_characters`. An exit
    status other than 0, a limit or a signal is an error, which the text names.

    With `isolation="full"` (Linux namespaces; no privileges needed if the system allows users to create them) the code

    - sees the interpreter, its packages and the system's libraries, read-only, and none of your other files;
    - writes only in its own folder, in memory, 64 MiB in all, gone afterwards (`/tmp`; `/var/tmp` if the interpreter
      lies below `/tmp`);
    - has no network, not even this machine's, and sockets of no other kind (vsock, netlink, packets, crypto);
    - sees none of the other processes, cannot signal them, has at most 16 of its own (threads count), all killed at
      the end;
    - has at most `memory` in each process, and in all together: these are looked at every 50 ms and killed if they have
      twice as much, or more than `memory` three times in a row. Memory that belongs to no process is refused: memfd,
      shared memory and messages of System V and POSIX, keys, asynchronous I/O, io_uring, larger buffers of sockets;
    - has no privileges, even if root runs the tool, and cannot use parts of the kernel that Python does not need
      (seccomp: ptrace, bpf, perf, userfaultfd, mounts, namespaces, and calls that are newer than this list).

    It does not limit:

    - reading of the interpreter's and the system's folders (`/usr`, `/lib`, packages), and what lies in them;
    - what several processes take between two looks, up to 16 times `memory`; and at all, if the system does not let it
      mount a list of its processes (an ordinary user in some containers): a container with a memory limit does;
    - memory of the kernel: about 64 MiB in pipes, 200 MiB in sockets and 16 MiB in timers and signals, page tables,
      about 200 bytes for each lock on a range of a file (any number of them), and the caches of files and names that
      it looks at, which the kernel empties when it needs the memory;
    - use of the processors by all its processes for `seconds`, and of their caches and memory bandwidth;
    - covert channels, and bugs of the kernel, which is the same: a virtual machine holds these.

    It needs Linux on x86-64 or 64-bit ARM.

    With `isolation="limits"` there are only limits on time, memory, size of a file and length of the output, and an
    empty folder to begin in: that holds back accidents, not intent. Code can read and write what you can, use the
    network, and leave processes running. It is for machines without namespaces and code that you trust.

    Args:
        seconds: time limit of a call.
        memory: address space of each process, and memory of all processes together, in bytes.
        max_characters: longest reply.
        isolation: `full` or `limits`.

    Raises:
        UnsupportedError: the system does not permit full isolation; the message names what it refused.
        InvalidInputError: an argument is out of range.

    Example:
        >>> python = Python(isolation="limits")  # so that this example runs everywhere
        >>> python("print(sum(range(10)))")
        ToolReply(text='45', error=False)
        >>> python("1/0").text.splitlines()[-1]
        'ZeroDivisionError: division by zero'
    """

    name: ClassVar = "python"
    description: ClassVar = "Runs Python code and returns what it prints."
    argument: ClassVar = "code"

    seconds: float = 5.0
    memory: int = 512 << 20
    max_characters: int = 4000
    isolation: Literal["full", "limits"] = "full"

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 3600:
            raise InvalidInputError(f"Python: seconds is {self.seconds}; give a number above 0, at most 3600")
        if self.memory < 64 << 20:
            raise InvalidInputError(f"Python: memory is {self.memory}; give at least {64 << 20} bytes")
        if self.max_characters < 1:
            raise InvalidInputError(f"Python: max_characters is {self.max_characters}; give at least 1")
        if self.isolation not in ("full", "limits"):
            raise InvalidInputError(f"Python: isolation is {self.isolation!r}; give 'full' or 'limits'")
        if self.isolation == "full" and (refused := _refused()):
            namespaces = "permit user namespaces, or " if refused.startswith(("unshare", "mount", "[Errno 1]")) else ""
            raise UnsupportedError(
                f"Python: this system does not permit full isolation ({refused}); {namespaces}"
                "give isolation='limits' for code that you trust"
            )

    def __call__(self, text: str) -> ToolReply:
        """Run the code `text`; see the class.

        Raises:
            AgentRLError: the sandbox could not be set up, whatever the text is.
        """
        run = _run(text, self.seconds, self.memory, 4 * self.max_characters, shut_in=self.isolation == "full")
        if run.refused:
            raise AgentRLError(
                f"Python: the sandbox could not be set up ({run.refused}); correct the cause, and run the code again"
            )
        printed = run.output.decode(errors="replace").rstrip("\n")
        if run.cut or len(printed) > self.max_characters:
            return ToolReply(f"{printed[: self.max_characters]}\n[the output is too long and was cut]", error=True)
        end = f"[stopped after {self.seconds:g} seconds]" if run.late else _end_of(run.status, printed)
        return ToolReply("\n".join(part for part in (printed, end) if part), error=run.late or run.status != 0)


@dataclass
class _Run:
    output: bytes
    status: int
    late: bool
    cut: bool
    refused: str


def _end_of(status: int, printed: str) -> str:
    number = abs(status) if status < 0 else status - 128
    if number in set(signal.Signals):
        return f"[killed by {signal.Signals(number).name}]"
    # Python exits with 1 after a traceback, which is more informative.
    return "" if status == 0 or (status == 1 and printed) else f"[exit status {status}]"


@functools.cache
def _refused() -> str:
    """Return why the system does not permit full isolation; empty if it does."""
    if not sys.platform.startswith("linux"):
        return f"it is {sys.platform}, not Linux"
    run = _run("print(1)", 60, 512 << 20, 1000, shut_in=True)
    return run.refused or ("" if run.output == b"1\n" else run.output.decode(errors="replace").strip())


def _run(code: str, seconds: float, memory: int, most: int, *, shut_in: bool) -> _Run:
    readable = [
        sys.base_prefix,
        sys.prefix,
        *map(os.path.dirname, (sys.executable, os.path.realpath(sys.executable))),
    ]
    with tempfile.TemporaryDirectory(prefix="agentrl-python-") as root, _readable(code) as source:
        home = _home(readable) if shut_in else root
        output, writer = os.pipe()
        status, status_writer = os.pipe()
        settings: Settings = {
            "status": status_writer,
            "root": root,
            "readable": readable,
            "home": home,
            "memory": memory,
            "files": _MAX_FILES,
            "processes": _MAX_PROCESSES if shut_in else 1 << 20,
            "seconds": int(seconds) + 1,
            "shut_in": shut_in,
        }
        try:
            process = subprocess.Popen(  # noqa: S603 -- this interpreter, our own program
                [sys.executable, "-I", "-S", "-B", str(_SANDBOX), json.dumps(settings)],
                stdin=source,
                stdout=writer,
                stderr=writer,
                cwd=root,
                env=_environment(home),
                pass_fds=(status_writer,),
                start_new_session=True,
            )
        except BaseException:
            os.close(output)
            os.close(status)
            raise
        finally:
            os.close(writer)
            os.close(status_writer)
        try:
            text, late, cut = _read(output, time.monotonic() + seconds, most, process)
        finally:
            _kill(process)
            os.close(output)
            with open(status, "rb") as file:  # noqa: PTH123 -- a descriptor
                refused = file.read().decode(errors="replace")
        return _Run(text, process.returncode, late, cut, refused)


@contextlib.contextmanager
def _readable(code: str) -> Iterator[BinaryIO]:
    """Open the code as an unnamed read-only file, which becomes the standard input of its process."""
    with tempfile.NamedTemporaryFile() as temporary:
        temporary.write(code.encode(errors="replace"))
        temporary.flush()
        source = open(temporary.name, "rb")  # noqa: SIM115, PTH123 -- it is closed below
    with source:
        yield source


def _home(readable: list[str]) -> str:
    """Return a path for the code's own folder that does not hide the interpreter."""
    for place in ("/tmp", "/var/tmp", "/home", "/mnt"):  # noqa: S108 -- in a file system of its own
        if not any(path == place or path.startswith(f"{place}/") for path in readable):
            return place
    raise UnsupportedError(
        f"Python: the interpreter has files in all of /tmp, /var/tmp, /home and /mnt ({readable}), but one must be "
        "free; move its files out of one of them"
    )


def _environment(home: str) -> dict[str, str]:
    return {
        "HOME": home,
        "TMPDIR": home,
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # sets print in the same order in every call
        "PYTHONUNBUFFERED": "1",  # what was printed before a limit is in the reply
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _read(output: int, deadline: float, most: int, process: subprocess.Popen[bytes]) -> tuple[bytes, bool, bool]:
    """Read the output until its end, the deadline or the limit; return it, and whether it was late or truncated."""
    text = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while len(text) <= most:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not selector.select(remaining):
                return bytes(text), True, False
            part = os.read(output, 65536)
            if not part:  # all writers closed it: the process has ended, or continues without output
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    return bytes(text), True, False
                return bytes(text), False, False
            text += part
    return bytes(text), False, True


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
