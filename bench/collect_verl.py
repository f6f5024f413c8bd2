"""A turn of verl's agent loop beside one of ours, with the same instant engine and environment.

    python bench/collect_verl.py [--episodes 10 100 1000] [--turns 10] [--runs 3]

verl's `ToolAgentLoop` runs unchanged, one for each episode, all in one event loop. Its tokenisation and its parsing of
tool calls are switched off: tokens are joined like ours, so that no tokenizer is measured. The bench leaves out the
steps of verl's workers after a loop (padding to tensors, Ray, scores), but includes ours in a turn (rollout log in
memory, forest, checks). It checks that both sides keep the same numbers of sampled tokens and of observation tokens.
Needs verl 0.9.1 with hydra-core and datasets.

slime has no multi-turn loop of its own to compare: its `generate` posts one prompt to a server of SGLang over HTTP. Its
programs of several turns are user examples that post and tokenise each turn anew, so that a server and a tokenizer
would be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import polars as pl
from collect import World, side_by_side
from common import Bench
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.schemas import ToolResponse
from verl.workers.rollout.replica import TokenOutput


class Free:
    """An engine that answers at once."""

    async def generate(self, **request: Any) -> TokenOutput:
        """Return sixteen tokens."""
        del request
        return TokenOutput(token_ids=[7] * 16, log_probs=[-0.5] * 16)


class Parser:
    """A parser that finds the same call in every answer."""

    stop_token_ids: tuple[int, ...] = ()

    async def extract_tool_calls(self, tokens: list[int], tools: Any) -> tuple[str, list[FunctionCall]]:
        """Return one call."""
        del tools
        return "", [FunctionCall(name="step", arguments=json.dumps({"action": str(tokens[0])}))]


class Step:
    """The environment as a tool, with one episode per loop."""

    name = "step"
    tool_schema = SimpleNamespace(model_dump=lambda **_: {"name": "step"})

    def __init__(self, world: World) -> None:
        self.world = world
        self.episodes: dict[str, Any] = {}

    async def create(self, create_kwargs: Any) -> tuple[str, None]:
        """Do nothing: the loop owns the episode."""
        del create_kwargs
        return "tool", None

    async def execute(
        self, _: str, arguments: dict[str, str], agent_data: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Take one step."""
        episode = self.episodes.get(agent_data.request_id)
        if episode is None:
            episode = self.episodes[agent_data.request_id] = self.world.reset(None, 1)
        outcome = episode.step(arguments["action"])
        return ToolResponse(text=outcome.observation or ""), outcome.reward or 0.0, {}

    async def release(self, _: str) -> None:
        """Do nothing."""


class Loop(ToolAgentLoop):
    """verl's loop without its tokenizer."""

    def __init__(self, world: World) -> None:  # its own needs a model's tokenizer and a whole configuration
        self.rollout_config = SimpleNamespace(full_determinism=False)
        self.server_manager, self.processor, self.tool_parser = Free(), None, Parser()
        self.tools = {"step": Step(world)}
        self.tool_schemas = [{"name": "step"}]
        self.max_user_turns, self.max_assistant_turns, self.max_parallel_calls = 0, world.turns, 1
        self.max_tool_response_length, self.tool_response_truncate_side = 1 << 20, "left"
        self.prompt_length = self.response_length = 1 << 20
        self.mm_processor_kwargs: dict[str, Any] = {}

    async def ct_build_initial_tokens(self, *_: Any, **__: Any) -> list[int]:
        """Return the prompt of our bench."""
        return [5] * 32

    async def ct_merge_assistant_token(
        self, tokens: Any, assistant_tokens: Any, mask: Any, logprobs: Any = None, assistant_logprobs: Any = None
    ) -> tuple[Any, list[int], list[float]]:
        """Append sampled tokens."""
        merged = SimpleNamespace(token_ids=tokens + assistant_tokens)
        return merged, mask + [1] * len(assistant_tokens), (logprobs or []) + assistant_logprobs

    async def ct_merge_context_msg(
        self, before: Any, after: Any, tokens: Any, mask: Any, logprobs: Any = None, tools: Any = None
    ) -> tuple[Any, list[int], list[float]]:
        """Append an observation."""
        del before, after, tools
        return SimpleNamespace(token_ids=tokens + [6] * 8), mask + [0] * 8, (logprobs or []) + [0.0] * 8


def of_verl(world: World, count: int) -> tuple[float, float, tuple[int, int]]:
    """Return wall seconds, CPU seconds, and the numbers of sampled tokens and of observation tokens."""

    async def run() -> list[Any]:
        loop = Loop(world)
        return await asyncio.gather(
            *(loop.run({}, raw_prompt=[{"role": "user", "content": "begin"}]) for _ in range(count))
        )

    begin, busy = time.perf_counter(), time.process_time()
    outputs = asyncio.run(run())
    seconds = time.perf_counter() - begin, time.process_time() - busy
    sampled = sum(sum(output.response_mask) for output in outputs)
    return *seconds, (sampled, sum(len(output.response_mask) for output in outputs) - sampled)


def of_ours(world: World, count: int) -> tuple[float, float, tuple[int, int]]:
    """Return the same figures of our side."""
    group = min(count, 8)
    seconds, busy, batch = side_by_side(world, count // group, group)
    nodes = pl.DataFrame(batch.nodes).select("kind", pl.col("tokens").list.len())
    sampled, observed = (int(nodes.filter(pl.col("kind") == kind)["tokens"].sum()) for kind in (1, 2))
    return seconds, busy, (sampled, observed)


def main() -> None:
    """Print and record the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    bench = Bench("collect_verl")
    world = World(options.turns)
    print(f"microseconds of a turn (and on a processor), {options.turns} turns an episode, best of {options.runs}")
    for count in options.episodes:
        theirs, ours = (
            [each(world, count // 8 * 8 or count) for _ in range(options.runs)] for each in (of_verl, of_ours)
        )
        turns = (count // 8 * 8 or count) * options.turns
        assert theirs[0][2] == ours[0][2], (theirs[0][2], ours[0][2])
        line: dict[str, Any] = {"episodes": turns // options.turns}
        for name, results in (("verl", theirs), ("ours", ours)):
            line[name], line[f"{name}_cpu"] = (
                1e6 * min(result[place] for result in results) / turns for place in (0, 1)
            )
        bench.lines.append(line)
        print("{episodes:>6} verl {verl:6.0f} ({verl_cpu:4.0f})  ours {ours:6.0f} ({ours_cpu:4.0f})".format(**line))
    bench.write()


if __name__ == "__main__":
    main()
