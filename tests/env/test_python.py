"""The sandboxed Python: its results, and hostile code that it stops."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from agentrl_core import env
from agentrl_core.env import python as module
from agentrl_core.env import sandbox as jail
from agentrl_core.exceptions import AgentRLError, InvalidInputError, UnsupportedError

needs_isolation = pytest.mark.skipif(
    bool(module._refused()), reason=f"this system does not permit full isolation: {module._refused()}"
)


@pytest.fixture(scope="module")
def python():
    return env.Python(seconds=300)


@pytest.fixture
def limited():
    return env.Python(seconds=300, isolation="limits")


def running_below() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("isolation", [pytest.param("full", marks=needs_isolation), "limits"])
class TestBoth:
    """Tests for both kinds of isolation."""

    @pytest.fixture
    def tool(self, isolation):
        return env.Python(seconds=300, isolation=isolation)

    def test_printed_text_is_the_reply(self, tool):
        assert tool("print(6 * 7)") == env.ToolReply("42", error=False)
        assert tool("") == env.ToolReply("", error=False)
        assert tool("import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('ä 💥')").text == "a\nb\nä 💥"

    def test_errors_contain_no_path_of_this_machine(self, tool):
        reply = tool("x = 1\nx / 0")
        assert reply.error
        assert reply.text == (
            'Traceback (most recent call last):\n  File "<stdin>", line 2, in <module>\n'
            "ZeroDivisionError: division by zero"
        )
        assert tool("1 +").text.endswith("SyntaxError: invalid syntax")
        assert tool("print('\ud800')").text == "?", "half a character is none"

    def test_an_exit_status_is_reported(self, tool):
        assert tool("raise SystemExit(0)") == env.ToolReply("", error=False)
        assert tool("raise SystemExit(3)") == env.ToolReply("[exit status 3]", error=True)
        assert tool("import os; os.abort()") == env.ToolReply("[killed by SIGABRT]", error=True)

    def test_calls_share_no_state_and_are_deterministic(self, tool):
        assert not tool("x = 1; open('note', 'w').write('x')").error
        assert "NameError" in tool("print(x)").text
        assert tool("import os; print(os.listdir('.'))").text == "[]"
        words = "print({'one', 'two', 'three', 'four', 'five'})"
        assert tool(words) == tool(words)

    def test_standard_input_is_empty(self, tool):
        assert "EOFError" in tool("input()").text

    def test_an_endless_loop_is_stopped_and_its_output_is_returned(self, isolation):
        before = time.monotonic()
        # As long as a busy machine needs to start.
        reply = env.Python(seconds=5, isolation=isolation)("print('first')\nwhile True: pass")
        assert reply == env.ToolReply("first\n[stopped after 5 seconds]", error=True)
        assert time.monotonic() - before < 300, "it is no hang"

    def test_an_endless_loop_with_closed_output_is_stopped(self, isolation):
        code = "import os\nos.close(1)\nos.close(2)\nwhile True: pass"
        assert env.Python(seconds=1, isolation=isolation)(code).text == "[stopped after 1 seconds]"

    def test_endless_printing_is_cut(self, isolation):
        reply = env.Python(seconds=60, max_characters=100, isolation=isolation)("while True: print('x' * 99)")
        assert reply.error
        assert reply.text == "x" * 99 + "\n" + "\n[the output is too long and was cut]"

    def test_ten_gigabytes_are_refused(self, tool):
        reply = tool("x = bytearray(10 << 30)")
        assert (reply.error, reply.text.splitlines()[-1]) == (True, "MemoryError")

    def test_a_large_file_is_refused(self, tool):
        assert "File too large" in tool("open('big', 'wb').write(bytes(100 << 20))").text

    def test_variables_of_this_process_are_not_passed_on(self, tool, monkeypatch):
        monkeypatch.setenv("AGENTRL_SECRET", "swordfish")
        assert "swordfish" not in tool("import os; print(dict(os.environ))").text


@needs_isolation
def test_a_fork_bomb_is_held_and_nothing_of_it_is_left(python):
    before = running_below()
    counted = python(
        "import os, time\ncount = 0\n"
        "while True:\n"
        "    try:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(1000)\n"
        "    except BlockingIOError:\n"
        "        break\n"
        "    count += 1\n"
        "print(count)"
    )
    assert not counted.error
    assert 0 < int(counted.text) < 16
    bomb = env.Python(seconds=1)("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    assert bomb.text == "[stopped after 1 seconds]"
    assert running_below() <= before


@needs_isolation
def test_nothing_outside_its_folder_is_written_or_read(python, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    assert "FileNotFoundError" in python(f"print(open({str(secret)!r}).read())").text
    assert "FileNotFoundError" in python(f"open({str(tmp_path / 'new')!r}, 'w')").text
    for folder in ("/usr", "/", sys.prefix):
        assert "Read-only file system" in python(f"open({folder!r} + '/new', 'w')").text
    assert python("import os; print(sorted(os.listdir('/dev')))").text == "['null', 'random', 'urandom', 'zero']"
    assert "FileNotFoundError" in python("open('/proc/self/mem')").text
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@needs_isolation
def test_all_files_together_have_a_limit(python):
    assert "No space left" in python("for i in range(100): open(f'f{i}', 'wb').write(bytes(1 << 20))").text


@needs_isolation
def test_isolated_code_cannot_connect_even_to_this_machine(python):
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        assert "Network is unreachable" in python(code).text
        assert not env.Python(seconds=300, isolation="limits")(code).error, "the same code reaches it otherwise"


@needs_isolation
def test_parents_and_strangers_cannot_be_signalled(python):
    reply = python(
        "import os, signal\n"
        "os.kill(os.getppid(), signal.SIGKILL)\n"
        f"try: os.kill({os.getpid()}, signal.SIGKILL)\n"
        "except ProcessLookupError: print('no such process')\n"
        "print('still here')"
    )
    assert reply == env.ToolReply("no such process\nstill here", error=False)


@needs_isolation
def test_background_processes_end_with_the_call(python):
    before = running_below()
    reply = python("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)\nprint('done')")
    assert reply.text == "done"
    assert running_below() <= before


@needs_isolation
def test_it_has_no_privileges_and_gets_none(python):
    reply = python(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "print(os.getuid() == 0, libc.unshare(0x10000000), libc.unshare(0x20000),\n"
        "      libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None), libc.setuid(0), libc.chroot(b'/tmp'))"
    )
    assert reply.text == "False -1 -1 -1 -1 -1"


@needs_isolation
def test_packages_of_this_interpreter_are_there(python):
    assert python("import numpy; print(numpy.ones(3) @ numpy.ones(3))").text == "3.0"


REFUSED = "[Errno 38] Function not implemented"
CALLS = "import ctypes, os, platform\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@needs_isolation
@pytest.mark.parametrize(
    "code",
    [
        "os.memfd_create('x')",
        "libc.shmget(0, 1 << 26, 0o1600)",
        "libc.msgget(0, 0o1600)",
        "libc.semget(0, 1, 0o1600)",
        "libc.mq_open(b'/x', 0o102, 0o600, None)",
        "libc.syscall(425, 8, ctypes.create_string_buffer(200))",  # io_uring_setup
        "libc.syscall(447, 0)",  # memfd_secret
        "libc.syscall(999)",  # a future call of a kernel
        "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)",
        "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)",
        # The process that watches, which has the same user.
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))",
        "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setaffinity(1, {0})",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.setpriority(os.PRIO_USER, 0, 19)",
        "libc.ptrace(16, 1, None, None)",
    ],
)
def test_ways_to_memory_and_to_the_watcher_are_refused(python, code):
    program = (
        f"{CALLS}import resource, socket\n"
        f"try:\n    done = {code}\n"
        "    if done != -1: print('done', done)\n"
        "    else: print(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))\n"
        "except OSError as error: print(error)"
    )
    assert python(program).text == REFUSED


@needs_isolation
def test_isolated_code_may_use_threads_subprocesses_and_sockets(python):
    """Threads, programs, forks, its own sockets, its own limits."""
    reply = python(
        "import asyncio, os, resource, socket, subprocess, sys, threading\n"
        "threading.Thread(target=print, args=('thread',)).start()\n"
        "print(subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True, text=True).stdout.strip())\n"
        "print(asyncio.run(asyncio.sleep(0, 'asyncio')))\n"
        "socket.socket(socket.AF_INET).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE), len(os.sched_getaffinity(0)) > 0)"
    )
    assert reply == env.ToolReply("thread\n5\nasyncio\n(32, 32) True", error=False)


@needs_isolation
def test_sockets_of_other_kinds_are_refused(python):
    code = (
        "import socket\nfor family in (16, 17, 38, 40, 44):\n"
        "    try: socket.socket(family, socket.SOCK_RAW); print('made', family)\n"
        "    except OSError as error: print(error.errno)"
    )
    assert python(code).text.split() == ["97"] * 5  # netlink, packets, crypto, vsock, XDP


@needs_isolation
def test_all_processes_together_have_a_limit():
    """Each process stays below the limit; a parent whose memory its children share is not many times as large."""
    small = env.Python(seconds=300, memory=256 << 20)
    many = small(
        "import os, time\n"
        "for _ in range(12):\n"
        "    if os.fork() == 0:\n"
        "        held = bytes(100 << 20).replace(b'\\0', b'1')\n"
        "        time.sleep(1000)\n"
        "time.sleep(1000)"
    )
    assert many.error
    assert "[all processes together took more than 256 MiB]" in many.text
    shared = small(
        "import os\nheld = bytes(100 << 20).replace(b'\\0', b'1')\nread, write = os.pipe()\n"
        "children = []\n"
        "for _ in range(8):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os.close(write)\n"
        "        os.read(read, 1)\n"  # until the parent has released it
        "        os._exit(0)\n"
        "    children.append(child)\n"
        "import time; time.sleep(0.5)\n"
        "os.close(write)\n"
        "print([os.waitpid(child, 0)[1] for child in children])"
    )
    assert shared == env.ToolReply(str([0] * 8), error=False)


@pytest.mark.parametrize("isolation", [pytest.param("full", marks=needs_isolation), "limits"])
def test_its_input_cannot_be_written(isolation):
    reply = env.Python(seconds=300, isolation=isolation)(
        "import os\ntry: print(os.write(0, b'x' * 100))\nexcept OSError as error: print(error)"
    )
    assert reply.text == "[Errno 9] Bad file descriptor"


@needs_isolation
def test_code_of_any_length_is_read(python):
    """The output is larger than a pipe's buffer."""
    assert python("x = 1\n" * 200_000 + "print(x)").text == "1"


SYSTEM_PYTHON = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), None)
SHUT_IN = """
import sys
sys.path.insert(0, {site!r})
from agentrl_core import env
print(env.Python(seconds=300)({code!r}))
"""


def elsewhere(folder: Path, code: str, *, user: int | None = None) -> str:
    """Return the output of an interpreter below a folder, as root or as another user."""
    site = next(path for path in sys.path if path.endswith("site-packages"))
    program = SHUT_IN.format(site=site, code=code)
    completed = subprocess.run(
        [str(folder / "bin" / "python"), "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        **({} if user is None else {"user": user, "group": user, "extra_groups": []}),
    )
    return completed.stdout + completed.stderr


@pytest.fixture(scope="module")
def below_tmp():
    """Return a virtual environment below the folder that the code gets for its own."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="agentrl-test-"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder / "venv")], check=True)
    folder.chmod(0o755)
    yield folder / "venv"
    shutil.rmtree(folder)


@needs_isolation
def test_an_interpreter_below_tmp_is_shut_in(below_tmp):
    output = elsewhere(
        below_tmp, "import os, sys; print(os.getcwd(), os.listdir('.'), sys.prefix, os.environ['TMPDIR'])"
    )
    assert f"/var/tmp [] {below_tmp} /var/tmp" in output
    output = elsewhere(below_tmp, f"open({str(below_tmp.parent / 'file')!r}, 'w')")
    assert "Read-only file system" in output


@needs_isolation
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_is_shut_in_too(below_tmp):
    """A user who is not root gets an additional user namespace; the same holds there."""
    base = Path(os.path.realpath(below_tmp / "bin" / "python"))
    if any(not path.stat().st_mode & 0o001 for path in (base, *base.parents)):
        pytest.skip(f"another user cannot run {base}")
    code = (
        "import os\nfor call in (lambda: os.memfd_create('x'), lambda: open('/x', 'w'), os.listdir):\n"
        "    try: print(call())\n    except OSError as error: print(error)"
    )
    output = elsewhere(below_tmp, code, user=12345)
    assert "ToolReply" in output, output
    assert "Function not implemented" in output
    assert "Read-only file system" in output
    assert "[]" in output


def test_the_error_names_the_operation_that_failed(monkeypatch):
    """The error recommends namespaces only if they are the cause."""
    monkeypatch.setattr(module, "_refused", lambda: "start /x/python: No such file or directory")
    with pytest.raises(UnsupportedError, match=r"\(start /x/python: No such file or directory\); give") as raised:
        env.Python()
    assert "namespaces" not in str(raised.value)


@needs_isolation
def test_calls_run_side_by_side(python):
    replies = {}

    def call(number):
        replies[number] = python(f"print({number} ** 2)").text

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == {number: str(number**2) for number in range(8)}


@needs_isolation
def test_it_dies_with_the_process_that_called_it(tmp_path):
    program = "from agentrl_core import env; env.Python(seconds=600)('import time; time.sleep(600)')"
    caller = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)})
    process = psutil.Process(caller.pid)
    deadline = time.monotonic() + 600
    while len(below := process.children(recursive=True)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(below) >= 3
    caller.kill()
    caller.wait()
    assert not psutil.wait_procs(below, timeout=300)[1]


def test_a_system_that_does_not_permit_isolation_is_reported(monkeypatch):
    monkeypatch.setattr(module, "_refused", lambda: "unshare: Operation not permitted")
    with pytest.raises(UnsupportedError, match=r"unshare: Operation not permitted.*isolation='limits'"):
        env.Python()
    assert env.Python(isolation="limits")("print(1)").text == "1"


def test_a_sandbox_that_cannot_be_set_up_raises(monkeypatch):
    python = env.Python(isolation="limits")
    monkeypatch.setattr(module, "_run", lambda *_, **__: module._Run(b"", 1, False, False, "mount: No space left"))
    with pytest.raises(AgentRLError, match=r"the sandbox could not be set up \(mount: No space left"):
        python("print(1)")


def test_an_error_during_sandbox_setup_is_reported():
    settings = (
        '{"status": 2, "root": "/nowhere", "readable": [], "home": "/tmp", "files": 1, "shut_in": true, "memory": 1, '
        '"seconds": 1}'
    )
    started = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(jail.__file__)), settings], capture_output=True, text=True, check=False
    )
    assert started.returncode == 1
    assert "mount" in started.stderr or "unshare" in started.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 0}, "seconds is 0"),
        ({"memory": 1}, "memory is 1"),
        ({"max_characters": 0}, "max_characters is 0"),
        ({"isolation": "some"}, "isolation is 'some'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        env.Python(**arguments)


def test_reasoning_gym_uses_it_as_a_tool():
    world = env.ReasoningGym(["lcm"], [env.Python(seconds=300, isolation="limits")], held_out=4)
    assert world.runs == "thread"
    episode = world.reset(world.tasks(1)[0], seed=0)
    assert episode.step("<call>print(2**10)</call>").observation == "<result>1024</result>"
