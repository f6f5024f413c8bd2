"""CJ-GRPO: for language models that unmask several tokens at a time, ratios along the way that was really decoded.

    r of a token = p(token | state) / p_old(token | state),   state: what was unmasked before its decode step
    L = mean over trajectories of the mean over decode steps of the mean over the step's tokens of
        - min(r A, clip(r, 0.5, 1.5) A) + 0.04 k3,   A = R - mean(R)

A decode step is a step of the trajectory, whose context is the state it was decoded from: every intermediate state is
recorded, and log-probs are those at the step where a token was unmasked. So the number of a token's decode step is its
column `step`, and a model reads of each step its state alone, as when it was decoded. A program does so with one line
before each action, `await branch.rewrite([state])`, with the state from the environment. Tokens of one step are read
in their order: a model that unmasks them at once, each without the others, answers through a function of its own
(`Pack.run`'s place in the loop). The paper's samplers (EOSER, ASS) are left out; they belong to the engine.

Source: Taming Masked Diffusion Language Models via Consistency Trajectory Reinforcement Learning (arXiv:2509.23924).
Needs: the model reference.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, log-probability at its own step: a step's context is its state.
    - C2, loss: `Policy("turn_mean", clip=Clip(0.5, 0.5))`.
    - C3, KL: `KL(0.04)`.
    - C4, advantage: `GroupRelative(scale="none")`.
    - C5, EOSER: left out: the engine chooses the positions that are unmasked.
    - C6, ASS: left out: the engine chooses how many positions a step unmasks.

Differs:
    - Mean of a decode step: over the tokens that all responses unmask in it in the code, over those of each response
      here. The two agree if a step unmasks equally many tokens of each response, as the samplers do.
    - Tokens after the end of the text: count in the code; here what the program records.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Clip, Policy

CJ_GRPO = Recipe(
    name="cj_grpo",
    source="arXiv:2509.23924",
    advantage=GroupRelative(scale="none"),
    loss=Policy("turn_mean", clip=Clip(0.5, 0.5), kl=KL(0.04)),
    epochs=12,
)
