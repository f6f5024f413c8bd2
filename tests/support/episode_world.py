"""Environments that a test defines as one `Episode` class, and a tokenizer to sample for them."""

from agentrl_core import env, warm_start
from agentrl_core.env import Task


class EpisodeWorld:
    """Begin the episode of each task with `begin(task)`."""

    runs = "inline"

    def __init__(self, begin):
        self.begin = begin

    def tasks(self, count, *, split="train", start=0):
        return [Task(f"{split}/{number}", "q", "d", None) for number in range(start, start + count)]

    def reset(self, task, seed):
        del seed
        return self.begin(task)


def lcm_world():
    """Return the environment for whose texts the tokenizer was made."""
    return env.ReasoningGym(["lcm"], seed=0, held_out=0)


def small_tokenizer():
    return warm_start.build(lcm_world(), seed=0)[1]
