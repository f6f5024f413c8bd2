"""CJ-GRPO: for language models that unmask several tokens at a time, ratios along the way that was really decoded.

    r of a token = p(token | state) / p_old(token | state),   state: what was unmasked before its decode step
    L = - mean over trajectories of the mean over decode steps of the mean over the step's tokens of
        min(r A, clip(r, 0.8, 1.2) A),   A = (R - mean) / std of the group

A decode step is a step of the trajectory, whose context is the state it was decoded from: every intermediate state is
recorded, and log-probs are those at the step where a token was unmasked. So the number of a token's decode step is its
column `step`, and a model reads of each step its state alone, as when it was decoded. A program does so with one line
before each action, `await branch.rewrite([state])`, with the state from the environment. Tokens of one step are read
in their order: a model that unmasks them at once, each without the others, answers through a function of its own
(`Pack.run`'s place in the loop). How steps are weighed against tokens is taken so; the paper's samplers (EOSER, ASS)
belong to the engine.

Source: Taming Masked Diffusion Language Models via Consistency Trajectory Reinforcement Learning (arXiv:2509.23924).
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

CJ_GRPO = Recipe(
    name="cj_grpo",
    source="arXiv:2509.23924",
    advantage=GroupRelative(),
    loss=Policy("turn_mean"),
)
