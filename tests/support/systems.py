"""The loss of every published system, as docs/losses.md lists them, and more variants."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl_core import loss

TABLE = Path(__file__).parents[2] / "docs" / "losses.md"
SCOPE = {name: getattr(loss, name) for name in loss.__all__}
LINE = re.compile(r"^\| (\w\d+) \| ([^|]+) \| `([^`]+)` \| .*\|$", re.MULTILINE)
SYSTEMS = {
    f"{key} {name}": eval(expression, {"__builtins__": {}}, SCOPE)  # the table is ours
    for key, name, expression in LINE.findall(TABLE.read_text(encoding="utf-8"))
}
VARIANTS = {
    "plain": loss.Policy(clip=None),
    "everything": loss.Policy(
        clip=loss.Clip(0.2, 0.3, 1.5), kl=loss.KL(0.1), drift=loss.KL(0.1, "k2", only=loss.Divergence()), entropy=0.1
    ),
    "segment gradient": loss.Policy(ratio=loss.Ratio("sequence", "mean", "segment")),
    "joint steps": loss.Policy(ratio=loss.Ratio("step", "sum", "segment")),
    "mixture of two": loss.Policy(ratio=loss.Mixture(0.3, None), clip=None),
    "prefix inside": loss.Policy(ratio=loss.PrefixMinimum(0.1, cap=True, inside=True)),
    "strata": loss.Policy(ratio=loss.StratifiedRatio(2)),
    "token bounds": loss.Policy(clip=loss.TokenClip(dual=2.0)),
    "proximal dual": loss.Policy(clip=loss.Clip(dual=1.3, center="proximal")),
    "second moment": loss.Policy(clip=loss.SecondMomentClip(0.05)),
    "soft clip": loss.Policy(surrogate=loss.Clipped("both")),
    "sapo": loss.Policy(clip=None, surrogate=loss.Smooth()),
    "cispo": loss.Policy(clip=loss.Clip(1.0, 0.2), surrogate=loss.Reinforce("clamped", "clamped")),
    "steps' mean": loss.Policy(clip=loss.Clip(scale="log"), surrogate=loss.GeometricMean("step")),
    "dppo": loss.Policy(clip=None, surrogate=loss.Reinforce("ratio", "ratio"), gate=loss.Divergence("kl", 0.02, 0.02)),
    "full": loss.Policy(kl=loss.KL(0.1, "full"), drift=loss.KL(0.1, straight_through=True)),
    "exponential steer": loss.Policy(gate=loss.EntropyChange("exponential")),
    "standard scores": loss.OutcomeClassifier(baseline="standard"),
    "joint pairs": loss.PairwiseProximal(kind="joint"),
    "log-ratios": loss.TrajectorySoftmax(score="log_ratio"),
    "hinge": loss.Preference(kind="hinge", smoothing=0.1, reduce="mean"),
    "advantage": loss.Imitation(tokens="advantage", weight="hellinger"),
}
LOSSES = {**SYSTEMS, **VARIANTS}
