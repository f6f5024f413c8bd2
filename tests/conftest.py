"""Fixtures of several test folders: a small environment, and a tiny model with a tokenizer of its texts."""

import contextlib
import copy
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

# The duration of an example depends on the machine's load alone. Every run tries the same examples, so that no change
# fails for unrelated reasons; `--hypothesis-profile=search` tries others.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", settings.get_profile("steady"), derandomize=False, print_blob=True)
settings.load_profile("steady")

# A Ray client without its cluster, left by `ray.shutdown` or a failed `ray.init`, silently ends its process after a
# minute, and with it the worker of the current test.
os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"] = "86400"  # noqa: SIM112 -- Ray's spelling

# A shell without job control starts background jobs that ignore Ctrl-C, and the tests' subprocesses would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules that tests of several folders import: with importlib mode pytest puts no folder on the path.
sys.path.append(str(Path(__file__).parent / "support"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: tiny products take longer on several."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def world():
    from agentrl_core import env

    return env.ReasoningGym(["chain_sum", "lcm"], tools=[env.Calculator()], seed=0, held_out=32)


@pytest.fixture(scope="session")
def _warm_policy(world):
    from agentrl_core.train.warm_start import warm_start

    return warm_start(world, seed=0, steps=150)


@pytest.fixture
def warm_policy(_warm_policy):
    """Return a model after a few supervised steps, and its tokenizer. The model is a copy for this test."""
    policy, tokenizer = _warm_policy
    return copy.deepcopy(policy), tokenizer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first, so that with several workers none of them runs alone at the end.

    Tests of vLLM come before all others: worksteal gives each worker equally many tests in a row, and steals from the
    end of another worker's. So one worker runs them all, and each module's server starts once.
    """
    items.sort(key=lambda item: (item.get_closest_marker("vllm") is None, item.get_closest_marker("slow") is None))


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    """Seed torch's own generator for each test, whichever tests ran before it in the process."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


# Processes that the standard library starts once and keeps running.
_KEPT = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def _children() -> set[int]:
    children: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            children.update(map(int, task.read_text().split()))
    return children


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    """Fail a test that leaves processes running, and kill them with their children."""
    before = _children()
    yield
    remaining = []
    for number in _children() - before:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(number)
            if not any(name in part for part in process.cmdline() for name in _KEPT):
                remaining.append(process)
    _, alive = psutil.wait_procs(remaining, timeout=60)
    commands = []
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            commands.append(" ".join(process.cmdline()) or process.name())
            for each in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
    psutil.wait_procs(alive, timeout=60)
    assert not commands, f"the test left processes running: {commands}"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, world):
    """A run directory of three iterations; read-only by convention."""
    from recorded import record

    run = tmp_path_factory.mktemp("runs") / "demo"
    record(run, world)
    return run


@pytest.fixture
def make_batch():
    """make_batch(seed): a small batch with forks, several steps and an invalid draw."""
    from small_batch import grow

    return grow


@pytest.fixture
def batch(make_batch):
    """A small batch."""
    return make_batch()


@pytest.fixture
def model():
    """A tiny model that fits the small batch, in double precision."""
    from hand_made import tiny_model

    return tiny_model()
