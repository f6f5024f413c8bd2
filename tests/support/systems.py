"""The losses of every published system, by its name and trained models, and more variants."""

from __future__ import annotations

from dataclasses import replace

from agentrl_core import loss, recipes
from agentrl_core.loss.surrogate import TokenClip
from agentrl_core.recipes.dppo import DivergenceMask
from agentrl_core.recipes.gmpo import GeometricMean
from agentrl_core.recipes.grpo_guard import StratifiedRatio
from agentrl_core.recipes.haepo import TrajectorySoftmax
from agentrl_core.recipes.m2po import SecondMomentClip
from agentrl_core.recipes.minpro import PrefixMinimum
from agentrl_core.recipes.p3o import PairwiseProximal
from agentrl_core.recipes.rl_plus import MixtureExpert
from agentrl_core.recipes.siren import EntropyAnchor
from agentrl_core.recipes.steer import EntropyChange


def of_recipe(name: str) -> dict[str, loss.Loss]:
    """Return the losses of a recipe, by its name and trained models."""
    links = [
        link if isinstance(link, loss.Train) else loss.Train(link) for link in recipes.get(name).at(0).chain("loss")
    ]
    return {f"{name}, {link.model}, {link.stage}" if len(links) > 1 else name: link.loss for link in links}


SYSTEMS = {key: system for name in recipes.names() for key, system in of_recipe(name).items()}
# After the iteration that measures its anchor; before, the term is 0.
SYSTEMS["siren"] = replace(SYSTEMS["siren"], entropy=EntropyAnchor(0.005, anchor=1.0))  # type: ignore[type-var]
# Their own losses read columns of a teacher's likeliest tokens, which these batches lack.
for distilling in ("sdpo", "turn_opd"):
    SYSTEMS[distilling] = replace(SYSTEMS[distilling], support="sampled")  # type: ignore[type-var]
VARIANTS = {
    "plain": loss.Policy(clip=None),
    "covariance": loss.Policy(
        clip=loss.Clip(0.2, 0.28, dual=10.0),
        mask=loss.CovarianceMask(0.02, 1.0, 40.0),
        aggregate="constant",
        constant=8192.0,
    ),
    "shifted bounds": loss.Policy(
        clip=loss.Clip(center="proximal_shift"),
        kl=loss.KL(0.0005),
        drift=loss.KL(0.0005, column="proximal_logprob"),
    ),
    "everything": loss.Policy(
        clip=loss.Clip(0.2, 0.3, 1.5), kl=loss.KL(0.1), drift=loss.KL(0.1, "k2", only=DivergenceMask()), entropy=0.1
    ),
    "segment gradient": loss.Policy(ratio=loss.Ratio("sequence", "mean", "segment")),
    "joint steps": loss.Policy(ratio=loss.Ratio("step", "sum", "segment")),
    "bounded ratio": loss.Policy(ratio=loss.Ratio("sequence", log_at_most=10.0), clip=None),
    "bounded divergence": loss.Policy(kl=loss.KL(0.1, at_most=10.0)),
    "mixture of two": loss.Policy(expert=MixtureExpert(0.3, None, exploration=0.0), clip=None),
    "prefix inside": loss.Policy(ratio=PrefixMinimum(0.1, bounded=True, inside=True)),
    "strata": loss.Policy(ratio=StratifiedRatio(2)),
    "token bounds": loss.Policy(clip=TokenClip(dual=2.0)),
    "proximal dual": loss.Policy(clip=loss.Clip(dual=1.3, center="proximal")),
    "interpolated": loss.Policy(clip=loss.Clip(dual=1.3, center="interpolated", center_at_most=1.2)),
    "all ranks": loss.ListMatch(direction="ranked", temperature=0.3),
    "second moment": loss.Policy(clip=SecondMomentClip(0.05)),
    "soft clip": loss.Policy(surrogate=loss.Clipped("both")),
    "cispo": loss.Policy(clip=loss.Clip(1.0, 0.2), surrogate=loss.Reinforce("clamped", "clamped")),
    "steps' mean": loss.Policy(clip=loss.Clip(scale="log"), surrogate=GeometricMean("step")),
    "dppo kl": loss.Policy(
        clip=None, surrogate=loss.Reinforce("ratio", "ratio"), mask=DivergenceMask("kl", 0.02, 0.02)
    ),
    "full": loss.Policy(kl=loss.KL(0.1, "full"), drift=loss.KL(0.1, straight_through=True)),
    "exponential steer": loss.Policy(mask=EntropyChange("exponential")),
    "standard scores": loss.OutcomeClassifier(baseline="standard"),
    "joint pairs": PairwiseProximal(kind="joint"),
    "log-ratios": TrajectorySoftmax(score="log_ratio"),
    "hinge": loss.Preference(kind="hinge", smoothing=0.1, reduce="mean"),
    "advantage": loss.Imitation(tokens="advantage", kind="hellinger"),
}
LOSSES = {**SYSTEMS, **VARIANTS}
