"""DataMind: shift from imitation to reinforcement learning within one loss (arXiv:2509.25084).

    L = gamma_t L_SFT + (1 - gamma_t) L_RL,   gamma_t from 0.9 to 0.05 along a cosine
    L_RL = - mean over tokens of the rollouts of min(r A, clip(r, 0.8, 1.28) A)
    L_SFT = - mean over the expert's trajectories of their sum of log p

A batch has 8 optimizer steps. Each of the two terms has the denominator of its own rows. Expert trajectories are
draws of origin `expert`. They have no log-probs, because no policy of the run sampled them, and do not vote in their
group. Trajectories with a turn that neither calls a tool nor answers are masked in the loss, but still vote.

Equations:
    Read: the paper's sections 4 and 5.1. The training code is not public.

    - 4, SFT loss: `Imitation("constant", constant=1.0)`, on draws of origin `expert`.
    - 5, RL loss: `Policy`, token mean over draws of origin `generated`; `GroupFilter` masks groups whose members all
      succeed or all fail.
    - 6, advantage: `GroupRelative`, std with divisor n - 1.
    - 7, final loss: `Sum`, each term with its own rows, and with schedules of both coefficients.
    - 8, reward: left out: the environment computes it from the length of the answer.
    - V, void turns: `FlagFilter(flags="void")`.

Differs:
    - Clip range: the paper gives none; this recipe has DAPO's 0.2 and 0.28.
    - Token mean: over the optimizer step here, as in DAPO's code; over one group in equation 5.
    - Length of the schedule: 500 iterations here; one epoch of the data in the paper.

Needs: expert draws; turns with the flag void; the fact success.
"""

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Where
from agentrl_core.loss import Clip, Imitation, Policy, Sum
from agentrl_core.weight import FlagFilter, GroupFilter

_GENERATED, _EXPERT = Where(origin="generated"), Where(origin="expert")

DATA_MIND = Recipe(
    name="data_mind",
    source="arXiv:2509.25084",
    advantage=(
        GroupRelative(where=_GENERATED),
        GroupRelative(coefficient=0.0, where=_EXPERT),
    ),
    weight=(FlagFilter(flags="void"), GroupFilter(column="success", where=_GENERATED)),
    loss=Sum(
        Policy(clip=Clip(0.2, 0.28)),
        Imitation("constant", constant=1.0),
        Schedule(0.1, 0.95, iterations=500, kind="cosine"),
        Schedule(0.9, 0.05, iterations=500, kind="cosine"),
        first_where=_GENERATED,
        second_where=_EXPERT,
    ),
    minibatches=8,
)
