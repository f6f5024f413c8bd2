"""Train the model of an unmodified LangGraph program to use a calculator, with GRPO.

    python examples/langgraph_calculator.py [--seeds 0 1 2] [--iterations 16] [--rollouts 128] [--record FILE]

The model is the small one of `agentrl train`, after imitation of correct and then of wrong calls. The example needs no
download and runs on a CPU. Success is measured on held-out tasks, before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start

# ---- the program, as LangGraph's own documentation writes it


@tool
def calculator(expression: str) -> str:
    """Works out + - * / // ( ), lcm(...) and gcd(...) on integers."""
    return env.Calculator()(expression).text


def program(base_url: str, api_key: str) -> Any:
    """A model that calls a tool until it answers."""
    model = ChatOpenAI(model="policy", base_url=base_url, api_key=api_key).bind_tools([calculator])

    async def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode([calculator]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile()


# ---- how it is trained

FAMILIES = ("chain_sum", "products", "lcm")
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\s*<call>",
            "close": "</call>",
            "repeats": True,
            "content": "text",
            "transform": {
                "type": "function",
                "function": {"name": "calculator", "arguments": {"expression": "{content}"}},
            },
        },
        "content": {"close_pattern": r"\s*(?:<end>)", "content": "text"},
    },
}
"""Format of the small model's tool calls."""


def with_response_format(tokenizer: Any) -> Any:
    """Add the model's format of calls and results to the tokenizer, as a server would configure it."""
    tokenizer.response_template = RESPONSE
    result_template = "<result>{{ message['content'] }}</result>"
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{% else %}{{ message['content'] }}", "{% else %}" + result_template
    )
    return tokenizer


def learned(seed: int, *, iterations: int, rollouts: int, steps: int, held_out: int) -> dict[str, Any]:
    """Return success on held-out tasks before and after training, with its intervals."""
    begin = time.perf_counter()
    gym = env.ReasoningGym(list(FAMILIES), seed=seed, held_out=held_out)
    torch.manual_seed(seed)
    model, tokenizer = warm_start.warm_start(gym, seed=seed, steps=steps)

    async def run(task: env.Task, base_url: str, api_key: str) -> float:
        state = await program(base_url, api_key).ainvoke({"messages": [("user", task.question)]})
        outcome = gym.reset(task, 0).step(str(state["messages"][-1].content))
        return outcome.reward or 0.0

    world = env.Agents(run, gym, tokenizer=with_response_format(tokenizer))
    generate = engine.Transformers(model, tokenizer)
    collector = arl.Collector(
        generate,
        world,
        recipes.GRPO,
        seed=seed,
        task_pool=16_384,
        sampling=engine.Sampling(max_tokens=32),
        context_tokens=1024,
        turn_limit=3,
        concurrency=64,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)

    def measured() -> list[float]:
        evaluation = collector.evaluate(tasks=held_out, samples=1)
        return [evaluation.success, *evaluation.interval()]

    before, success = measured(), []
    for iteration in range(iterations):
        batch = collector(tasks=rollouts // 8, group_size=8)
        success.append(float(batch.column("success", "draw").mean()))
        batch = recipes.GRPO.credit(batch)
        for group in optimizer.param_groups:
            group["lr"] = 5e-4 * min(1.0, (iteration + 1) / 4)
        updates = recipes.GRPO.updates(batch, seed=seed + iteration)
        for update in updates:
            for pack in update.pack(max_tokens=16_384):
                update.loss(pack.run(model), pack).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        generate.update_weights(model, version=iteration + 1)
        collector.end_iteration(batch, updates.metrics)
        print(f"seed {seed} iteration {iteration} success {success[-1]:.3f}", flush=True)
    after = measured()
    collector.close()
    world.close()
    generate.close()
    seconds = time.perf_counter() - begin
    return {"seed": seed, "before": before, "after": after, "success": success, "seconds": seconds}


def main() -> None:
    """Train, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=128, help="of an iteration")
    parser.add_argument("--steps", type=int, default=480, help="of the warm start")
    parser.add_argument("--held-out", type=int, default=128, help="tasks that success is measured on")
    parser.add_argument("--record", type=Path, help="file for the figures")
    options = parser.parse_args()
    lines = []
    for seed in options.seeds:
        lines.append(
            learned(
                seed,
                iterations=options.iterations,
                rollouts=options.rollouts,
                steps=options.steps,
                held_out=options.held_out,
            )
        )
        intervals = ["{:.3f} [{:.3f}, {:.3f}]".format(*lines[-1][which]) for which in ("before", "after")]
        print(f"seed {seed}: held-out success before {intervals[0]}, after {intervals[1]}", flush=True)
        if options.record is not None:
            load = {"cores": os.cpu_count(), "load": os.getloadavg()}
            options.record.write_text(json.dumps({"machine": load, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
