"""Options out of range, and the properties that losses declare."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentrl_core import loss
from agentrl_core.component import token
from agentrl_core.exceptions import RecipeError
from agentrl_core.loss.surrogate import TokenClip
from agentrl_core.recipes.aspo import EntropyClip, InverseRatio
from agentrl_core.recipes.bapo import BalancedClip
from agentrl_core.recipes.dcpo import ProbabilityClip
from agentrl_core.recipes.dppo import DivergenceMask
from agentrl_core.recipes.drpo import LengthDecoupled
from agentrl_core.recipes.epo import EntropyBand
from agentrl_core.recipes.grpo_guard import StratifiedRatio
from agentrl_core.recipes.haepo import TrajectorySoftmax
from agentrl_core.recipes.hapo import EntropyAdvantage
from agentrl_core.recipes.light_if import CovarianceEntropy
from agentrl_core.recipes.m2po import SecondMomentClip
from agentrl_core.recipes.minpro import PrefixMinimum
from agentrl_core.recipes.p3o import PairwiseProximal
from agentrl_core.recipes.sapo import Smooth
from agentrl_core.recipes.siren import EntropyAnchor
from agentrl_core.recipes.steer import EntropyChange


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loss.Ratio("token", "sum"), "level='token' is not possible; reduce and gradient need segments"),
        (lambda: loss.Ratio("token", gradient="segment"), "level='token'"),
        (
            lambda: loss.Ratio("turn"),
            "level='turn' is not possible; give one of 'token', 'step', 'sequence', 'item'",
        ),
        (lambda: PrefixMinimum(at_least=1.0), "at_least=1.0"),
        (lambda: StratifiedRatio(1), "rows_at_least=1"),
        (lambda: loss.Clip(center="proximal_shift", scale="log"), "center='proximal_shift'"),
        (lambda: loss.Clip(center_at_most=5.0), "center_at_most=5.0 is not possible; the centre is 1: choose center="),
        (lambda: loss.Clip(center="interpolated", center_at_most=0.0), "center_at_most=0.0"),
        (lambda: loss.Clip(low=-0.1, scale="log"), "low=-0.1"),
        (lambda: TokenClip(dual=0.5), "dual=0.5"),
        (lambda: EntropyClip(quantile=1.0), "quantile=1.0"),
        (lambda: EntropyClip(low=loss.Clip(center="proximal")), "give a clip with center=.one"),
        (lambda: ProbabilityClip(low=0.0), "low=0.0"),
        (lambda: ProbabilityClip(at_most=1.0), "at_most=1.0"),
        (lambda: BalancedClip(low=0.95), "low=0.95 is not possible; give at most low_at_most="),
        (lambda: BalancedClip(high=3.5), "high=3.5"),
        (lambda: BalancedClip(low_step=0.0), "low_step=0.0"),
        (lambda: SecondMomentClip(0.0), "at_most=0.0"),
        (lambda: SecondMomentClip(narrowest=loss.Clip(center="proximal")), "give a clip with center=.one"),
        (lambda: InverseRatio(positive_at_most=0.0), "positive_at_most=0.0"),
        (lambda: Smooth(negative=0.0), "negative=0.0"),
        (lambda: loss.Reinforce(at_most=2.0), "at_most=2.0 is not possible; use it with positive or negative='ratio'"),
        (lambda: loss.Expert(shape=0.0), "shape=0.0"),
        (lambda: loss.InBounds("ring", ring_low=1.0), "ring_low=1.0"),
        (lambda: loss.InBounds("ring", ring_high=1.0), "ring_high=1.0"),
        (lambda: DivergenceMask(low=0.0), "low=0.0"),
        (lambda: loss.TopTokens(fraction=1.0), "fraction=1.0"),
        (lambda: loss.CovarianceMask(high=0.5), "high=0.5 is not possible; give a number above low=1.0"),
        (lambda: loss.CovarianceMask(seed=-1), "seed=-1"),
        (lambda: EntropyChange(low=1.0), "low=1.0"),
        (lambda: EntropyChange(high=0.5), "high=0.5"),
        (lambda: EntropyAdvantage(coefficient=2.0), "coefficient=2.0"),
        (lambda: loss.KL(0.1, at_most=0.0), "at_most=0.0 is not possible; give a number above 0, or None"),
        (lambda: loss.Ratio("sequence", log_at_most=21.0), "log_at_most=21.0"),
        (lambda: EntropyBand(low=2.0), "low=2.0 is not possible; give a number below high=2.0"),
        (lambda: EntropyBand(0.0), "coefficient=0.0"),
        (lambda: CovarianceEntropy(at_most=0.0), "at_most=0.0"),
        (lambda: EntropyAnchor(quantile=0.0), "quantile=0.0"),
        (lambda: loss.Policy(entropy=loss.KL(0.1)), "is not possible; give a finite number or a loss.EntropyTerm"),
        (lambda: loss.Regression(beta=0.0), "beta=0.0"),
        (lambda: loss.Regression(next_value=1.0), "next_value=1.0 is not possible"),
        (lambda: loss.Regression("constant"), "constant=None"),
        (lambda: loss.Preference(smoothing=0.5), "smoothing=0.5"),
        (lambda: loss.Preference(reference_share=1.5), "reference_share=1.5"),
        (lambda: PairwiseProximal(epsilon=1.0), "epsilon=1.0"),
        (lambda: loss.ListMatch(temperature=0.0), "temperature=0.0"),
        (lambda: TrajectorySoftmax(drift_coefficient=-1.0), "drift_coefficient=-1.0"),
        (lambda: loss.OutcomeClassifier(beta=0.0), "beta=0.0"),
        (lambda: LengthDecoupled(length_at_most=0), "length_at_most=0"),
        (lambda: loss.Value(clip=0.1, kind="categorical"), "clip=0.1 is not possible"),
        (lambda: loss.Value(of="logit", heads="soft_minimum"), "of='logit' is not possible; the value is then"),
        (lambda: loss.Value(of="duelling", kind="categorical"), "of='duelling' is not possible; the value is then"),
        (lambda: loss.Value(of="duelling", scale=0.0), "scale=0.0 is not possible"),
        (lambda: loss.Value(high=0.0), "high=0.0 is not possible; give a number above low=0.0"),
        (lambda: loss.Imitation(tokens="good"), "tokens='good'"),
        (lambda: loss.Sum(loss.Policy(), loss.Policy(), first_coefficient=-1.0), "first_coefficient=-1.0"),
        (lambda: loss.Sum(loss.Policy(), loss.KL(0.1)), "second=KL"),
    ],
)
def test_options_out_of_range(make: Callable[[], object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_streams_units_and_flags_follow_the_parts() -> None:
    plain = loss.Policy()
    assert plain.streams == ("advantage_positive", "advantage_negative", "weight_kl", "old_logprob")
    assert (plain.unit, plain.foldable, plain.separable, plain.outputs) == ("token", True, True, ())
    assert loss.Policy(ratio=loss.Ratio("step")).unit == "step"
    assert loss.Policy(ratio=loss.Ratio("step"), mask=loss.TopTokens(scope="sequence")).unit == "trajectory"
    assert loss.Policy(kl=loss.KL(0.1, only=loss.TopTokens())).foldable is False
    assert loss.Policy(clip=BalancedClip()).foldable is True
    assert loss.Policy(clip=BalancedClip()).separable is False
    assert loss.Policy(kl=loss.KL(0.1, "full")).outputs == ("full_kl",)
    proximal = loss.Policy(clip=loss.Clip(center="proximal"))
    assert proximal.needs == (token("proximal_logprob"), token("advantage"), token("behaviour_logprob"))
    between = loss.Policy(clip=loss.Clip(center="interpolated"))
    assert between.needs[:2] == (token("policy_version"), token("iteration"))
    assert all(column.model is None for column in between.needs)  # no forward pass
    assert "reference_logprob" not in loss.Policy(kl=loss.KL(0.1, column="proximal_logprob")).streams
    assert loss.Value(clip=0.1).needs == (token("return"), token("old_value"))
    assert (loss.Preference().unit, loss.ListMatch().unit, loss.Value().unit) == ("pair", "group", "token")
    assert loss.Regression("constant", 7.0).denominator_constant == 7.0
