"""Do one small thing with the packages of each extra: python extras.py NAME ...

`tools/try_wheel.py --extras all` runs it in an environment that has the wheel with one extra alone. Nothing is
downloaded. MiniWoB needs Chromium and its driver, ScienceWorld needs Java; if they are missing, the script checks the
error message. Each extra has a function of the same name in this file, with underscores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agentrl_core as arl
from agentrl_core import engine, env
from agentrl_core.exceptions import EngineError, MissingDependencyError

EXTRAS: dict[str, Callable[[], None]] = {}


def extra(program: Callable[[], None]) -> Callable[[], None]:
    """Name a program after its extra."""
    EXTRAS[program.__name__.replace("_", "-")] = program
    return program


def check(holds: object, message: object = "") -> None:
    """End with an error if something does not hold."""
    if not holds:
        raise SystemExit(f"not as expected: {message}")


def stored(folder: str) -> str:
    """Store a run of one group, and return its path."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member, reward in enumerate((1.0, 0.0)):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(trajectory, [3], kind="action", logprobs=[-0.5])
        forest.finish(trajectory, reward=reward)
    path = str(Path(folder) / "run")
    with arl.Store.open(path) as store:
        batch = forest.freeze()
        store.append(batch, iteration=0)
        store.close_iteration(batch, {"iteration": 0})
    return path


def small_model() -> tuple[Any, Any]:
    """Return a tiny causal model of random weights and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = ("<end>", "user", "assistant", *map(str, range(10)), "+", "=", "?")
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=words[0], pad_token=words[0])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }} <end> {% endfor %}"
        "{% if add_generation_prompt %}assistant {% endif %}"
    )
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        eos_token_id=0,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval(), tokenizer


class Sums:
    """An environment that needs no package."""

    runs = "inline"

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[env.Task]:
        """Return tasks."""
        return [env.Task(f"{split}/{number}", "1 + 1 = ?", "sums", None) for number in range(start, start + count)]

    def reset(self, task: env.Task, seed: int) -> Sum:
        """Start an episode."""
        del task, seed
        return Sum()


class Sum:
    """One turn."""

    observation = "1 + 1 = ?"

    def step(self, action: str) -> env.StepResult:
        """Reward a text of even length."""
        return env.StepResult(reward=float(len(action) % 2 == 0), terminated=True, success=True)

    def state_key(self) -> bytes:
        """Return the state."""
        return b""


@extra
def agents() -> None:
    """Serve the recording endpoint and open a session."""
    import httpx

    from agentrl_core.agents import Endpoint, VllmUpstream

    with Endpoint(VllmUpstream("http://127.0.0.1:9")).running() as url:
        response = httpx.post(f"{url}/sessions", json={"session_id": "a", "task_id": "6*7"}, trust_env=False)
        check(response.json()["session_id"] == "a", response.text)


@extra
def cli() -> None:
    """List and check a run in the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        path = stored(folder)
        for command in ("ls", "stats", "verify"):
            subprocess.run([Path(sys.executable).with_name("agentrl"), command, path], check=True, capture_output=True)


@extra
def cuda() -> None:
    """Compile a GPU kernel; this needs no GPU."""
    from cuda.core import Program, ProgramOptions

    source = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
    check(Program(source, "c++", ProgramOptions(std="c++17", arch="sm_90")).compile("cubin").code)


@extra
def gymnasium() -> None:
    """Walk over the frozen lake."""
    world = env.Gymnasium("FrozenLake-v1", max_turns=20)
    check(world.reset(world.tasks(1)[0], seed=0).step("down").observation)


@extra
def mcp() -> None:
    """Call a tool of a server in a process of its own."""
    server = env.MCP([sys.executable, __file__, "--serve"])
    [double] = server.tools
    check("42" in double('{"number": 21}').text)
    server.close()


def serve() -> None:
    """Serve a tool; runs in a process of its own."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("numbers")

    @server.tool()
    def double(number: int) -> str:
        """Return twice a number."""
        return str(2 * number)

    server.run("stdio")


@extra
def minigrid() -> None:
    """Turn left in a grid, and read the observation."""
    world = env.MiniGrid("MiniGrid-Empty-5x5-v0", observation="image")
    check(world.reset(world.tasks(1)[0], seed=0).step("turn left").observation)


@extra
def miniwob() -> None:
    """Click in a browser."""
    import miniwob  # noqa: F401 -- tests whether it is installed
    import selenium  # noqa: F401 -- the same

    if shutil.which("chromedriver") is None:
        return
    world = env.MiniWoB("click-test", observation="dom")
    episode = world.reset(world.tasks(1)[0], seed=0)
    check(episode.observation)
    episode.close()
    world.close()


@extra
def polars() -> None:
    """Read a run."""
    with tempfile.TemporaryDirectory() as folder:
        check(arl.scan(stored(folder)).trajectories.collect()["reward"].to_list() == [1.0, 0.0])


@extra
def ray() -> None:
    """Run an episode in an actor."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    check(ray.get(ray.remote(lambda: arl.__version__).remote()) == arl.__version__)
    ray.shutdown()


@extra
def reasoning_gym() -> None:
    """Answer a question."""
    world = env.ReasoningGym(["lcm"], tools=[env.Calculator()], seed=0)
    check(world.reset(world.tasks(1)[0], seed=0).step("<answer>1</answer>").terminated)


@extra
def scienceworld() -> None:
    """Look around; without Java, the error names it."""
    try:
        world = env.ScienceWorld(["find-plant"])
    except MissingDependencyError as error:
        check("Java" in str(error), error)
        return
    episode = world.reset(world.tasks(1)[0], seed=0)
    check(episode.step("<action>look around</action>").observation)
    episode.close()
    world.close()


@extra
def search() -> None:
    """Find a document."""
    search_tool = env.Search(["Penguins live in the south.", "Polar bears live in the north."], top=1)
    check("north" in search_tool("polar bears").text)


@extra
def server() -> None:
    """Send a request to a server that does not exist; check the error."""
    _, tokenizer = small_model()
    try:
        engine.VllmServer("http://127.0.0.1:9", tokenizer, patience=0.1)
    except EngineError as error:
        check("does not answer" in str(error), error)
        return
    raise SystemExit("a server answered")


@extra
def tensorboard() -> None:
    """Write metrics."""
    from agentrl_core.integrations import TensorBoard

    with tempfile.TemporaryDirectory() as folder:
        write = TensorBoard(folder)
        write(0, {"loss": 0.5})
        write.close()
        check(list(Path(folder).iterdir()))


@extra
def textworld() -> None:
    """Generate a game and look around."""
    world = env.TextWorld("coin_collector", {"level": 1}, max_turns=4, seed=0)
    episode = world.reset(world.tasks(1)[0], seed=0)
    check(episode.step("<action>look</action>").observation)
    episode.close()


@extra
def torch() -> None:
    """Train a small model for one iteration, with the engine of this process."""
    import torch

    from agentrl_core import recipes

    policy, tokenizer = small_model()
    optimizer = torch.optim.AdamW(policy.parameters())
    collector = arl.Collector(engine.Transformers(policy, tokenizer), Sums(), recipes.GRPO)
    batch = recipes.GRPO.credit(collector(tasks=2, group_size=4))
    updates = recipes.GRPO.updates(batch)
    for update in updates:
        for pack in update.pack(max_tokens=1024):
            update.loss(pack.run(policy), pack).backward()
        optimizer.step()
    collector.end_iteration(batch, updates.metrics)
    collector.close()


@extra
def train() -> None:
    """Run `agentrl train`, and look at its run."""
    with tempfile.TemporaryDirectory() as folder:
        run, page = Path(folder) / "run", Path(folder) / "run.html"
        agentrl = Path(sys.executable).with_name("agentrl")
        options = ["--iterations", "1", "--warm-start-steps", "2", "--rollouts", "8", "--held-out", "4"]
        subprocess.run([agentrl, "train", "--run", run, *options], check=True, capture_output=True)
        subprocess.run([agentrl, "view", run, "-o", page], check=True, capture_output=True)
        check(page.stat().st_size)


@extra
def trl() -> None:
    """Import the plug-in: a step of TRL's trainer is a test of its own."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from agentrl_core.integrations import trl as plugin

    check(plugin.RecipeTrainer.__mro__[1].__module__.startswith("trl"))


@extra
def vllm() -> None:
    """Import vLLM: its wheel samples on a GPU."""
    import vllm

    check(issubclass(engine.Vllm, object), vllm.__version__)


@extra
def wandb() -> None:
    """Log metrics without a server."""
    from agentrl_core.integrations import WeightsAndBiases

    write = WeightsAndBiases(project="demo", mode="disabled")
    write(0, {"loss": 0.5})
    write.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        for asked in sys.argv[1:]:
            EXTRAS[asked]()
            print(f"{asked} works")
