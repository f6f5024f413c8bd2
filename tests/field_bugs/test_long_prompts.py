"""One task of 32 has a prompt longer than context_tokens."""

import pytest
from episode_world import EpisodeWorld, small_tokenizer
from warning_recorder import recorded_warnings

import agentrl_core as arl
from agentrl_core import engine, recipes
from agentrl_core.env import StepResult
from agentrl_core.exceptions import AgentRLError


class Episode:
    def __init__(self, task):
        self.observation = "go" + " x" * 200 * task.task_id.endswith("/7")

    def step(self, action):
        del action
        return StepResult(reward=1.0, terminated=True, success=True)

    def state_key(self):
        return b""


@pytest.fixture(scope="module")
def reports():
    """Run four iterations and return the messages of all errors, then of all warnings."""
    policy = engine.Scripted(small_tokenizer(), lambda _: "ok")
    errors = []
    with recorded_warnings() as caught:
        collect = arl.Collector(policy, EpisodeWorld(Episode), recipes.GRPO, context_tokens=64, task_pool=32)
        for _ in range(4):
            try:
                batch = collect(tasks=16, group_size=4)
                collect.end_iteration(batch, {})
            except AgentRLError as error:
                errors.append(str(error))
        collect.close()
    return errors, [str(each.message) for each in caught]


def test_report_of_a_too_long_prompt_names_the_task(reports):
    """rllm#280, verl-tool#85: the message must name the task to remove from the data set."""
    errors, warned = reports
    assert all("train/7" in message for message in errors)
    assert any("train/7" in message for message in errors + warned)


def test_a_too_long_prompt_does_not_stop_the_run(reports):
    """rllm#280, verl-tool#85: the group of this task is left out, as if its environment could not be reset."""
    errors, _ = reports
    assert not errors
