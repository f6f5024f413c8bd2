"""CJ-GRPO: compute ratios at the actual decoding states of language models that unmask several tokens at a time.

    r of a token = p(token | state) / p_old(token | state),   state: the tokens unmasked before its decode step
    L = mean over trajectories of the mean over decode steps of the mean over the step's tokens of
        - min(r A, clip(r, 0.5, 1.5) A) + 0.04 k3,   A = R - mean(R)

A decode step is a step of the trajectory, and its context is the state from which it was decoded. Every intermediate
state is recorded, and the log-prob of a token is computed at the step that unmasked it. So the column `step` is the
number of a token's decode step, and for each step the model reads only its state, as in decoding. A program does so
with one line before each action, `await branch.rewrite([state])`, with the state from the environment. The tokens of a
step are read in order. A model that unmasks them at once, independently of each other, needs its own function in place
of `Pack.run` in the loop. The paper's samplers (EOSER, ASS) are left out; they belong to the engine.

Source: Taming Masked Diffusion Language Models via Consistency Trajectory Reinforcement Learning (arXiv:2509.23924).
Needs: the reference model.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, log-probability at its own step: the context of a step is its state.
    - C2, loss: `Policy("turn_mean", clip=Clip(0.5, 0.5))`.
    - C3, KL: `KL(0.04)`.
    - C4, advantage: `GroupRelative(scale="none")`.
    - C5, EOSER: left out: the engine chooses the positions that are unmasked.
    - C6, ASS: left out: the engine chooses how many positions a step unmasks.

Differs:
    - Mean of a decode step: the code averages over the tokens that all responses unmask in the step, the recipe over
      the tokens of each response. Both are equal if a step unmasks the same number of tokens of each response, as the
      samplers do.
    - Tokens after the end of the text: they count in the code; here the tokens that the program records count.
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
