"""A run that resumes with other tasks than at its start."""

from episode_world import small_tokenizer
from warning_recorder import recorded_warnings

import agentrl_core as arl
from agentrl_core import engine, env, recipes
from agentrl_core.exceptions import AgentRLError


def collect_once(path, data, tokenizer):
    """Collect an iteration of the data set; return its tasks and the warnings."""
    tasks = [env.Task(f"{data}/{number}", "q", data, "4") for number in range(16)]
    world = env.ToolEnvironment(tasks, [], lambda task, answer: float(answer == task.payload))
    policy = engine.Scripted(tokenizer, lambda _: "4")
    with arl.Store.open(path) as store, recorded_warnings() as caught:
        policy.policy_version = store.iteration
        collect = arl.Collector(policy, world, recipes.GRPO, store=store, task_pool=16)
        batch = collect(tasks=2, group_size=2)
        policy.policy_version += 1
        collect.end_iteration(batch, {})
        collect.close()
    return set(batch.texts("task_id", "draw")), caught


def test_resuming_with_another_data_set_is_reported(tmp_path):
    """NeMo-RL#2519: statistics, replays and selections of the run are about tasks that are gone."""
    tokenizer = small_tokenizer()
    first, _ = collect_once(tmp_path / "run", "first", tokenizer)
    assert {name.split("/")[0] for name in first} == {"first"}
    try:
        second, caught = collect_once(tmp_path / "run", "second", tokenizer)
    except AgentRLError:
        return
    assert {name.split("/")[0] for name in second} == {"second"}
    assert caught
