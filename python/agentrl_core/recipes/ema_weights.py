"""Keep an average of the policy's weights, which smooths out the noise of single steps (arXiv:2310.11428).

    average <- (1 - b) average + b policy,   b = max(t^-0.5, 0.001)   after optimizer step t

Small errors that feed back into later samples make training unstable. The average is used for evaluation, for
rollouts or as a reference. Training continues from the policy's own weights, with GRPO's loss.

Equations:
    Read: the authors' poster and the abstract, notes of others; not the paper's text.

    - P1, behavior cloning loss: left out: the paper clones continuous actions of an expert; a policy of tokens has
      the loss of its recipe, here GRPO's.
    - P2, iterates: not computed: the user's optimizer makes the steps.
    - P3, exponential moving average: `DecayedAverage`.
    - N1, schedule, weight of the new iterate: `DecayedAverage.share`.
    - N2, schedule, notes of others: left out: the poster's weights apply to the new iterate, as in N1.
    - N3, return over a horizon: not computed: the paper measures it to show the noise; it is not a part of training.

Differs:
    - Order: the poster's average takes the iterate before the step, here the one after it, as averages of weights
      usually do.
    - Power and floor of the schedule: not found in the sources; 0.5, and 0.001 as in the notes.
    - Clip, group size, KL: none in the source; those of GRPO here.

Needs: a model `average`, passed to `recipe.updates`.
"""

import math
from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy
from agentrl_core.schedule import SyncModel


@dataclass(frozen=True)
class DecayedAverage(SyncModel):
    """Move a model towards another one by a share that decays from 1: max(t^-power, mix).

    Args:
        source: name of the model to move towards.
        target: name of the model that moves.
        mix: the smallest share.
        power: how fast the share decays.

    Raises:
        RecipeError: an option is out of range, or `corrected` is given.

    Example:
        >>> from agentrl_core.recipes.ema_weights import DecayedAverage
        >>> average = DecayedAverage("policy", "average", mix=0.1, unit="steps")
        >>> [average.share(step) for step in (1, 4, 1000)]
        [1.0, 0.5, 0.1]
    """

    power: float = option(0.5, above=0)

    def check_options(self) -> None:
        """Reject `corrected`, which uses another schedule."""
        super().check_options()
        self.require(not self.corrected, "corrected", "leave it False: the share decays by `power`")

    def share(self, number: int) -> float:
        """Return the share of `source` in the iteration or step of this number."""
        return max(math.pow(number // (self.every or 1), -self.power), self.mix)


EMA_WEIGHTS = Recipe(
    name="ema_weights",
    source="arXiv:2310.11428",
    advantage=GroupRelative(),
    loss=Policy(),
    hooks=DecayedAverage("policy", "average", mix=0.001, unit="steps"),
)
