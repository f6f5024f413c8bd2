"""Train a program that calls a model through OpenAI's client, unchanged.

    python examples/openai_agent.py

`run` is such a program: it uses a base URL and a key, and does not import agentrl_core. A script plays the model, so
that the example needs no weights. Needs `pip install openai 'agentrl-core[agents,train]'`.
"""

from __future__ import annotations

import openai

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start


async def run(task: env.Task, base_url: str, api_key: str) -> float:
    """Request an answer, let the model check it, and return the reward."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [{"role": "user", "content": task.question}]
        first = await client.chat.completions.create(model="policy", messages=messages)
        messages += [
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "Are you sure? Write the final number."},
        ]
        second = await client.chat.completions.create(model="policy", messages=messages)
    return float(second.choices[0].message.content == task.payload)


def main() -> None:
    tasks = [env.Task(f"{n}", f"What is {n} + 2?", "sums", str(n + 2)) for n in range(2)]
    world = env.Agents(run, tasks)
    _, tokenizer = warm_start.build(env.ReasoningGym(["lcm"], seed=0), seed=0)
    script = engine.Scripted(tokenizer, lambda request: str(2 + request.seed % 2))
    collector = arl.Collector(script, world, recipes.GRPO, task_pool=2)
    batch = recipes.GRPO.credit(collector(tasks=2, group_size=4))
    print(f"{batch.num_draws} rollouts with {len(batch.steps)} recorded requests")
    print(f"rewards are 0 and 1: {sorted(set(batch.column('reward', 'draw').tolist())) == [0.0, 1.0]}")
    print(f"advantages of a group add up to {abs(batch.column('advantage', 'draw').sum()):.1f}")
    collector.close()
    world.close()


if __name__ == "__main__":
    main()
