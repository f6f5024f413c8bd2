"""An average of weights beside the policy, which the noise of single steps does not move.

    average <- 0.999 average + 0.001 policy   after every optimizer step

Small errors that feed back into what is sampled next make training unstable; the average is what is evaluated, rolled
out or kept as a reference. The loss is GRPO's. "Butterfly Effects of SGD Noise" studies cloning and language models;
its rate is not certain, and a rate that begins small is `corrected=True`.

Source: Butterfly Effects of SGD Noise (arXiv:2310.11428). Needs: a model `average`, given to `recipe.updates`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.schedule import SyncModel

EMA_WEIGHTS = Recipe(
    name="ema_weights",
    source="arXiv:2310.11428",
    advantage=GroupRelative(),
    loss=Policy(),
    hooks=SyncModel("policy", "average", mix=0.001, unit="steps"),
)
