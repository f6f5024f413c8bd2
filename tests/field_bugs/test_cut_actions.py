"""An action that max_tokens cuts off is not a format error of the policy."""

import polars as pl
from episode_world import EpisodeWorld, small_tokenizer

import agentrl_core as arl
from agentrl_core import engine, recipes
from agentrl_core.env import StepFlag, StepResult

ANSWER = "the answer is 12."


class Episode:
    """Reward an answer with a full stop with 1, and penalise any other one as a format error."""

    observation = "Answer, and end with a full stop."
    turns = 0

    def step(self, action):
        self.turns += 1
        if action.endswith("."):
            return StepResult(reward=1.0, terminated=True, success=True)
        over = self.turns == 3
        return StepResult(
            None if over else "?",
            reward=-1.0,
            truncated=over,
            flags=StepFlag.FORMAT_ERROR,
            success=False if over else None,
        )

    def state_key(self):
        return str(self.turns).encode()


def test_action_cut_by_max_tokens_is_not_a_format_error():
    """tinker-cookbook#506: the environment cannot see that the action's finish_reason is "length"."""
    tokenizer = small_tokenizer()
    sampling = engine.Sampling(max_tokens=len(engine.Chat(tokenizer).action(ANSWER)) - 3)
    policy = engine.Scripted(tokenizer, lambda _: ANSWER)
    collect = arl.Collector(policy, EpisodeWorld(lambda _: Episode()), recipes.GRPO, sampling=sampling)
    batch = collect(tasks=1, group_size=1)
    collect.close()
    actions = pl.DataFrame(batch.nodes).filter(pl.col("kind") == 1)
    assert 2 in actions["finish_reason"].to_list(), "no action was cut"
    assert not any(flag & StepFlag.FORMAT_ERROR for flag in pl.DataFrame(batch.steps)["flags"])
