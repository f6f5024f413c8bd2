"""SSRL: let the policy simulate its own search: it writes the query and the search results (arXiv:2508.10874).

    R = 0.9 [the answer is right] + 0.1 format,   then GRPO with 0.001 of k3 to the reference

Text in the tags of simulated results is not trained, like text from an environment. Later the same policy uses a real
search. The environment computes the format score as `reward.format` (balanced tags; higher for up to two thoughts, none
above eight).

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, reward: `OutcomeScore(success=0.9)` and `CombineReward(coefficient=0.1)`; success is an exact match.
    - C2, format: left out: it depends on the tags in a text; the environment computes it as `reward.format`.
    - C3, mask: `MarkedScaled(column="simulated", marked=0.0, of="keep")`.
    - C4, advantage: `GroupRelative`; its std divides by n - 1, and 1e-6 is added to it. A group of one has advantage 0
      here, and its reward in the code (`singleton="raw"`).
    - C5, policy loss: `Policy(clip=Clip(0.2, 0.2, dual=3.0))`.
    - C6, divergence: `KL(0.001, at_most=10.0)`.

Differs:
    - Token mean: over a micro-batch in the code, over the whole optimizer step here.
    - Results with a line end in them: in the code they are trained, because its search for tags does not match across
      lines; here no result is trained.
    - Rewards: notes recall another table in the paper, which was not read; here the code's rewards.

Source: arXiv:2508.10874. Needs: the facts success and `reward.format`; the reference model; the token column
`simulated`, from `arl.annotate(batch, "simulated", spans.Parsed(...))` with a parser that finds
`<information>...</information>`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.weight import MarkedScaled

SSRL = Recipe(
    name="ssrl",
    source="arXiv:2508.10874",
    reward=(OutcomeScore(success=0.9, failure=0.0), CombineReward(column="reward.format", coefficient=0.1)),
    advantage=GroupRelative(),
    weight=MarkedScaled(column="simulated", marked=0.0, of="keep"),
    loss=Policy(clip=Clip(0.2, 0.2, dual=3.0), kl=KL(0.001, at_most=10.0)),
)
