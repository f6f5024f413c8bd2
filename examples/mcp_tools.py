"""Let rollouts call the tools of an MCP server; this file is the server, too.

    python examples/mcp_tools.py

A script plays the model, so that the example needs no weights: give the collector `engine.Vllm(...)` instead. Needs
`pip install 'agentrl-core[mcp,train]'`.
"""

from __future__ import annotations

import re
import sys

import polars as pl

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start

PRICES = {"tea": 3, "coffee": 4, "cake": 5}


def serve() -> None:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("shop")

    @server.tool()
    def price(article: str) -> str:
        """Return the price of an article."""
        return str(PRICES[article])

    server.run("stdio")


def main() -> None:
    tasks = [env.Task(name, f"What does {name} cost?", "shop", str(price)) for name, price in PRICES.items()]
    server = env.MCP([sys.executable, __file__, "--serve"])
    world = env.ToolEnvironment(tasks, server.tools, lambda task, answer: float(answer == task.payload))
    _, tokenizer = warm_start.build(env.ReasoningGym(["lcm"], seed=0), seed=0)

    def reply(request: engine.Request) -> str:
        """Call the tool, then answer with its reply; every other rollout answers without a call."""
        text = script.chat.decode(request.tokens)
        name = next(name for name in PRICES if f"What does {name} cost?" in text)
        call = f'{{"name": "price", "arguments": {{"article": "{name}"}}}}'
        if call in text:
            return re.findall(r"\d+", text)[-1]
        return "4" if request.seed % 2 else f"<tool_call>{call}</tool_call>"

    script = engine.Scripted(tokenizer, reply)
    collector = arl.Collector(script, world, recipes.GRPO, seed=0)
    batch = recipes.GRPO.credit(collector(tasks=3, group_size=4))
    turns = pl.DataFrame(batch.steps).group_by("trajectory_id").len("turns")
    rollouts = (
        pl.DataFrame(batch.trajectories).select("trajectory_id", "task_id", "reward").join(turns, on="trajectory_id")
    )
    draws = pl.DataFrame(batch.draws).select("trajectory_id").with_columns(advantage=batch.column("advantage", "draw"))
    groups = draws.join(rollouts, on="trajectory_id").group_by("task_id", "turns")
    print(groups.agg(pl.len(), pl.col("reward", "advantage").mean().round(3)).sort("task_id", "turns"))
    collector.close()
    server.close()


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
