"""Ways to memory in the sandboxed Python, as root and as an ordinary user: each statement of docs/trust.md."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl_core.env import python as module

pytestmark = pytest.mark.skipif(
    bool(module._refused()), reason=f"this system does not permit full isolation: {module._refused()}"
)
CALL = """
import sys
sys.path.insert(0, {site!r})
from agentrl_core import env
print(env.Python(seconds=300, memory=128 << 20)({code!r}).text)
"""
WAYS = {
    "private": ("bytearray(200 << 20)", "MemoryError"),
    "shared": (
        """
import mmap
mmap.mmap(-1, 200 << 20)
""",
        "Cannot allocate memory",
    ),
    "device": (
        """
import mmap
with open('/dev/zero', 'r+b') as zero: mmap.mmap(zero.fileno(), 200 << 20)
""",
        "Cannot allocate memory",
    ),
    "shared by several": (
        """
import mmap, os, time
for _ in range(12):
    held = mmap.mmap(-1, 64 << 20)
    if os.fork() == 0:
        for place in range(0, len(held), 4096): held[place] = 1
        time.sleep(1000)
    held.close()
time.sleep(1000)
""",
        "[all processes together took more than 128 MiB]",
    ),
    "deleted files": (
        """
import os
total = 0
try:
    while True:
        file = os.open('x', os.O_CREAT | os.O_WRONLY)
        os.unlink('x')
        total += os.write(file, bytes(8 << 20))
except OSError as error: print(total >> 20, error.strerror)
""",
        "64 No space left on device",
    ),
    "many files": (
        """
try:
    for number in range(20_000): open(str(number), 'w').close()
except OSError as error: print(number < 10_000, error.strerror)
""",
        "True No space left on device",
    ),
    "attributes": (
        """
import os
open('x', 'w').close()
try:
    for number in range(20_000): os.setxattr('x', f'user.{number}', bytes(60_000))
except OSError as error: print(number * 60_000 < 64 << 20)
""",
        "True",
    ),
    "file systems": (
        """
import os
print(os.path.exists('/dev/shm'), os.path.exists('/sys'), os.listdir('/proc'))
""",
        "False False []",
    ),
    "pipes": (
        """
import fcntl, os
total = 0
try:
    while True:
        read, write = os.pipe()
        try: fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
        except OSError: pass
        os.set_blocking(write, False)
        try:
            while True: total += os.write(write, bytes(4096))
        except BlockingIOError: pass
except OSError as error: print(total <= 64 << 20, error.strerror)
""",
        "True Too many open files",
    ),
    "timers": (
        """
import ctypes, os
libc, timer, count = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p(), 0
while count < 1_000_000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0: count += 1
print(count < 1_000_000, os.strerror(ctypes.get_errno()))
""",
        "True Resource temporarily unavailable",
    ),
}


def run_code(interpreter: str, code: str, user: int | None) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    return subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=False, cwd="/", **options)


@pytest.fixture(scope="module", params=[None, 12345])
def call(request) -> Callable[[str], str]:
    """Return functions that run code in the sandbox of this user, and of one that is not root."""
    user, interpreter = request.param, sys.executable
    site = next(path for path in sys.path if path.endswith("site-packages"))
    if user is not None:
        if os.getuid() != 0:
            pytest.skip("only root can become another user")
        interpreter = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), "")
        check = f"import sys; sys.path.insert(0, {site!r}); import agentrl_core.env; print(sys.version_info[:2])"
        if not interpreter or run_code(interpreter, check, user).stdout.strip() != str(sys.version_info[:2]):
            pytest.skip("another user cannot run this package")

    def called(code: str) -> str:
        completed = run_code(interpreter, CALL.format(site=site, code=code), user)
        return completed.stdout + completed.stderr

    return called


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_memory_is_limited(call, way) -> None:
    code, expected = WAYS[way]
    assert expected in call(code)
