"""Options out of range, and what losses say about themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentrl_core import loss
from agentrl_core.exceptions import RecipeError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loss.Ratio("token", "sum"), "level='token' is not possible; 'token' has nothing to reduce"),
        (lambda: loss.Ratio("token", gradient="segment"), "level='token'"),
        (lambda: loss.Ratio("turn"), "level='turn' is not possible; give one of 'token', 'step', 'sequence'"),
        (lambda: loss.PrefixMinimum(floor=1.0), "floor=1.0"),
        (lambda: loss.Mixture(share=1.0), "share=1.0"),
        (lambda: loss.Mixture(prior=2.0), "prior=2.0"),
        (lambda: loss.StratifiedRatio(1), "smallest=1"),
        (lambda: loss.Clip(center="proximal_shift", scale="log"), "center='proximal_shift'"),
        (lambda: loss.Clip(low=-0.1, scale="log"), "low=-0.1"),
        (lambda: loss.TokenClip(dual=0.5), "dual=0.5"),
        (lambda: loss.EntropyClip(quantile=1.0), "quantile=1.0"),
        (lambda: loss.EntropyClip(low=loss.Clip(center="proximal")), "its centre is one here"),
        (lambda: loss.ProbabilityClip(low=0.0), "low=0.0"),
        (lambda: loss.ProbabilityClip(limit=1.0), "limit=1.0"),
        (lambda: loss.BalancedClip(low=0.9), "low=0.9 is not possible; give 0 < low <= low_limit <= 1"),
        (lambda: loss.BalancedClip(high=3.0), "high=3.0"),
        (lambda: loss.BalancedClip(low_step=0.0), "low_step=0.0"),
        (lambda: loss.SecondMomentClip(0.0), "budget=0.0"),
        (lambda: loss.SecondMomentClip(least=loss.Clip(center="proximal")), "its centre is one here"),
        (lambda: loss.Flipped(positive_cap=0.0), "positive_cap=0.0"),
        (lambda: loss.Smooth(negative=0.0), "negative=0.0"),
        (lambda: loss.Reinforce(cap=2.0), "cap=2.0 is not possible; give a number above 0 and use it with 'ratio'"),
        (lambda: loss.Expert(shape=0.0), "shape=0.0"),
        (lambda: loss.Expert("mixture", share=0.0), "share=0.0"),
        (lambda: loss.Expert(exploration=-1.0), "exploration=-1.0"),
        (lambda: loss.InBounds("ring", ring_low=1.0), "ring_low=1.0"),
        (lambda: loss.InBounds("ring", ring_high=1.0), "ring_high=1.0"),
        (lambda: loss.Divergence(low=0.0), "low=0.0"),
        (lambda: loss.TopShare(share=1.0), "share=1.0"),
        (lambda: loss.CovarianceClip(high=0.5), "high=0.5 is not possible; give a number above low=1.0"),
        (lambda: loss.CovarianceClip(seed=-1), "seed=-1"),
        (lambda: loss.EntropyChange(low=1.0), "low=1.0"),
        (lambda: loss.EntropyChange(high=0.5), "high=0.5"),
        (lambda: loss.EntropyAdvantage(scale=2.0), "scale=2.0"),
        (lambda: loss.KL(0.1, cap=0.2), "cap=0.2 is not possible"),
        (lambda: loss.EntropyBand(low=2.0), "low=2.0 is not possible; give 0 <= low < high"),
        (lambda: loss.EntropyBand(0.0), "coefficient=0.0"),
        (lambda: loss.CovarianceEntropy(most=0.0), "most=0.0"),
        (lambda: loss.EntropyAnchor(quantile=0.0), "quantile=0.0"),
        (lambda: loss.Policy(entropy=loss.KL(0.1)), "is not possible; give a finite number or a loss.EntropyTerm"),
        (lambda: loss.Regression(beta=0.0), "beta=0.0"),
        (lambda: loss.Regression(next_value=1.0), "next_value=1.0 is not possible"),
        (lambda: loss.Regression("constant"), "constant=None"),
        (lambda: loss.Preference(smoothing=0.5), "smoothing=0.5"),
        (lambda: loss.Preference(reference_share=1.5), "reference_share=1.5"),
        (lambda: loss.PairwiseProximal(epsilon=1.0), "epsilon=1.0"),
        (lambda: loss.ListMatch(temperature=0.0), "temperature=0.0"),
        (lambda: loss.TrajectorySoftmax(drift=-1.0), "drift=-1.0"),
        (lambda: loss.OutcomeClassifier(beta=0.0), "beta=0.0"),
        (lambda: loss.LengthDecoupled(limit=0), "limit=0"),
        (lambda: loss.Value(clip=0.1, error="categorical"), "clip=0.1 is not possible"),
        (lambda: loss.Value(high=0.0), "high=0.0 is not possible; give a number above low=0.0"),
        (lambda: loss.Imitation(tokens="good"), "tokens='good'"),
        (lambda: loss.Sum(loss.Policy(), loss.Policy(), first_weight=-1.0), "first_weight=-1.0"),
        (lambda: loss.Sum(loss.Policy(), loss.KL(0.1)), "second=KL"),
        (lambda: loss.Proportional(horizon=0), "horizon=0"),
        (lambda: loss.Doubling(target=0.0), "target=0.0"),
        (lambda: loss.Exponential(least=1.0), "least=1.0 is not possible; give 0 < least <= initial <= most"),
    ],
)
def test_options_out_of_range(make: Callable[[], object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_streams_units_and_flags_follow_the_parts() -> None:
    plain = loss.Policy()
    assert plain.streams == ("advantage_positive", "advantage_negative", "weight_kl", "old_logprob")
    assert (plain.unit, plain.foldable, plain.separable, plain.answers) == ("token", True, True, ())
    assert loss.Policy(ratio=loss.Ratio("step")).unit == "step"
    assert loss.Policy(ratio=loss.Ratio("step"), gate=loss.TopShare(scope="sequence")).unit == "trajectory"
    assert loss.Policy(kl=loss.KL(0.1, only=loss.TopShare())).foldable is False
    assert loss.Policy(clip=loss.BalancedClip()).foldable is True
    assert loss.Policy(clip=loss.BalancedClip()).separable is False
    assert loss.Policy(kl=loss.KL(0.1, "full")).answers == ("full_kl",)
    proximal = loss.Policy(clip=loss.Clip(center="proximal"), old_logprob="recomputed")
    assert proximal.needs == (("token", "advantage"), ("token", "recomputed_logprob"), ("token", "proximal_logprob"))
    assert "reference_logprob" not in loss.Policy(kl=loss.KL(0.1, other="proximal_logprob")).streams
    assert loss.Value(clip=0.1).needs == (("token", "return"), ("token", "old_value"))
    assert (loss.Preference().unit, loss.ListMatch().unit, loss.Value().unit) == ("pair", "group", "token")
    assert loss.Regression("constant", 7.0).denominator_constant == 7.0
