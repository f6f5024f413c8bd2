"""The loops that users copy run as written."""

import re
from pathlib import Path

import polars as pl
import pytest

README = Path(__file__).parents[2] / "README.md"


def shortened(code: str, *cuts: tuple[str, str]) -> str:
    """Return the code with smaller numbers; each text to replace must occur."""
    for long, short in cuts:
        assert code.count(long) == 1, f"{long!r} is not once in the loop"
        code = code.replace(long, short)
    return code


@pytest.fixture
def blocks() -> list[str]:
    found = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(found) == 3
    return found


# After three steps of warm start the model calls no tool, so ARPO cannot fork, and warns.
@pytest.mark.filterwarnings("ignore:rollout.EntropyBranching forks at tool results")
def test_the_training_loop_runs_and_its_files_are_read(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop, columns, reading = blocks
    assert len([line for line in loop.splitlines() if line.strip()]) <= 20
    names: dict[str, object] = {}
    exec(
        shortened(
            loop,
            ("collector.iteration, 40", "collector.iteration, 2"),
            ("seed=0)  ", "seed=0, steps=3)"),
            ("tasks=16", "tasks=2"),
        ),
        names,
    )
    store = names["store"]
    assert store.iteration == 2
    assert len(pl.DataFrame(store.draws)) >= 4
    exec(columns, {})
    exec(reading.replace("runs/demo", "runs/arpo"), {})
    store.close()


DESIGN_LOOP = """
policy, optimizer = make_policy()
generate = engine.Transformers(policy, tokenizer)
world    = env.ReasoningGym(["chain_sum", "lcm"], tools=[env.Calculator()], seed=0)
planner  = rollout.EntropyBranching(budget=4, initial=2)
recipe   = recipes.ARPO.replace(rollout=planner, loss=loss.Policy(kl=loss.KL(0.01)))
store    = arl.Store.open("runs/arpo")
collector = arl.Collector(generate, world, recipe, store=store)

for iteration in range(collector.iteration, 2):
    batch = collector(tasks=2, group_size=8)
    batch = arl.annotate(batch, "reference_logprob", reference)
    batch = recipe.credit(batch)
    updates = recipe.updates(batch)
    for update in updates:
        for pack in update.pack(max_tokens=16_384):
            update.loss(pack.run(policy), pack).backward()
        optimizer.step(); optimizer.zero_grad()
    generate.update_weights(policy, version=iteration + 1)
    collector.end_iteration(batch, updates.metrics)
"""


def test_the_loop_of_the_design_runs_with_a_reference_model(tmp_path, monkeypatch, warm_policy):
    import copy

    import torch

    import agentrl_core as arl
    from agentrl_core import engine, env, loss, recipes, rollout

    monkeypatch.chdir(tmp_path)
    policy, tokenizer = warm_policy
    policy = copy.deepcopy(policy)

    def make_policy():
        return policy, torch.optim.AdamW(policy.parameters(), lr=1e-3)

    names = {
        "make_policy": make_policy,
        "tokenizer": tokenizer,
        "reference": copy.deepcopy(policy),
        "arl": arl,
        "engine": engine,
        "env": env,
        "loss": loss,
        "recipes": recipes,
        "rollout": rollout,
    }
    exec(DESIGN_LOOP, names)
    store = names["store"]
    batch = store.batch(0)
    for name, level in (("score", "draw"), ("advantage", "draw"), ("reference_logprob", "token")):
        assert len(batch.column(name, level))
    assert store.iteration == 2
    store.close()
