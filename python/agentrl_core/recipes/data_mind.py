"""DataMind: imitation at first, reinforcement later, in one loss whose weights cross over (arXiv:2509.25084).

    L = gamma_t L_SFT + (1 - gamma_t) L_RL,   gamma_t from 0.9 to 0.05 along a cosine
    L_RL = - mean over tokens of min(r A, clip(r, 0.8, 1.28) A)
    L_SFT = - mean over tokens of log p of the expert's

Both means are over all trained tokens of the update. Experts' trajectories are draws without log-probs (nobody sampled
them) and of origin `expert`; they have no say in their group's comparison. Trajectories with a turn that neither calls
a tool nor answers are left out. The schedule and the treatment of such turns are not certain; the training code is not
public.

Needs: experts' draws; turns marked void.
"""

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Where
from agentrl_core.loss import Clip, Imitation, Policy, Sum
from agentrl_core.weight import ExpertMask, FlagFilter

DATA_MIND = Recipe(
    name="data_mind",
    source="arXiv:2509.25084",
    advantage=(
        GroupRelative(where=Where(origin="generated")),
        GroupRelative(coefficient=0.0, where=Where(origin="expert")),
    ),
    weight=(ExpertMask(), FlagFilter(flags="void")),
    loss=Sum(
        Policy(clip=Clip(0.2, 0.28)),
        Imitation("token_mean", tokens="expert"),
        Schedule(0.1, 0.95, iterations=500, kind="cosine"),
        Schedule(0.9, 0.05, iterations=500, kind="cosine"),
    ),
)
