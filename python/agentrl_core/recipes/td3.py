"""TD3: trust the smaller of two token critics, and train the policy half as often as the critics (arXiv:1802.09477).

    y_t = min(Q1', Q2')(s_{t+1}, a'),   or, if an action of the environment ends with token t,
    y_t = r + 0.99 min(Q1', Q2')(s_{t+1}, a');   for the last action: y_t = r
    L_k = mean over tokens of 1/2 (Q_k - y)^2,   L = - mean over tokens of r Q1(s, a)

The noise on a' is left out, since tokens have no distance and so no nearby actions. The actor's gradient through its
action is left out, since a token does not pass it on. In its place r = p / p_behaviour, not clipped, turns the mean
over stored tokens into the mean under the policy, sum_a p(a | s) Q1(s, a). A baseline would not change the gradient of
this mean, and lowers its variance: `GroupRelative(column="advantage", level="token", group_by="batch", scale="none")`
after `TwinTargets`.

A critic is a language model whose logits are the values of the tokens. a' is the likeliest token of a slow copy of the
policy, and Q' are slow copies of the critics. Every batch is drawn uniformly from all earlier rollouts. In every second
iteration the policy is trained and all copies move by 0.005. Time passes only between actions of the environment, so
rewards are not discounted within an action.

Needs: rewards of steps; the models `critic`, `second_critic`, and the copies `target_policy`, `target_critic`,
`second_target`; the token columns `estimate`, `first_estimate` and `second_estimate`, and the step columns
`first_estimate_after` and `second_estimate_after` of truncated rollouts. With `arl.annotate`:

    batch = arl.annotate(batch, "estimate", estimate(critic))
    batch = arl.annotate(batch, "first_estimate", estimate(target_critic, target_policy))
    batch = arl.annotate(batch, "second_estimate", estimate(second_target, target_policy))

Equations:
    Read: the abstract and the authors' code; the paper's text was not read.

    - C1, smoothed action of the target: left out: tokens have no distance, so noise has no size; a' is the likeliest
      token of `target_policy`.
    - C2, target: `TwinTargets`, the smaller of both estimates; a truncated rollout continues with the estimates after
      it.
    - C3, critic loss: `Value(of="logit")` of each critic, to one target.
    - C4, actor loss: `Policy` without a clip range, whose advantage is the first critic's estimate; `DelayedModel`.
    - C5, targets: `SyncModel` of both critics and the policy.
    - C6, exploration: left out: the policy samples its tokens; uniformly sampled tokens would not be text.

Differs:
    - Critics: 1/2 of the square here, the square in the code; each critic has its own optimizer here.
    - Order: the code trains the actor with the critic after the critic's step; here the actor is trained with the
      critic before that step.
    - Replay: the last million transitions in the code, all earlier rollouts here.
    - Batch: 256 transitions for each step of the environment in the code; as many rollouts as were collected here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from agentrl_core import Recipe
from agentrl_core.component import BatchComponent, Column, Rows, option, step, token
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.replay import Memory, Mix
from agentrl_core.schedule import FreezeModel, SyncModel

if TYPE_CHECKING:
    from torch import Tensor, nn

    from agentrl_core import Batch

_OF_CRITICS = (
    token("estimate", model="critic"),
    token("first_estimate", model="target_critic"),
    token("second_estimate", model="second_target"),
    step("first_estimate_after", model="target_critic"),
    step("second_estimate_after", model="second_target"),
)


def estimate(critic: nn.Module, policy: nn.Module | None = None) -> Callable[[Any], Tensor]:
    """Return a function for `arl.annotate` that computes a critic's values of sampled or of likeliest tokens.

    Args:
        critic: a causal model whose logits are values.
        policy: the model whose likeliest tokens are used; None: use the sampled tokens.
    """

    def answer(pack: Any) -> Tensor:
        if policy is not None:
            best = cast("Tensor", pack.run(policy, outputs=("likeliest",)).likeliest)
            pack = replace(pack.to(best.device), target=best, _copies={})
        outputs = pack.run(critic, outputs=("soft_value",))
        scale = pack.to(outputs.logprob.device).streams.inverse_temperature
        return cast("Tensor", outputs.soft_value + outputs.logprob / scale)

    return answer


@dataclass(frozen=True)
class TwinTargets(BatchComponent):
    """Compute the critics' targets `return` from the smaller of two estimates; `advantage` is the critic's estimate.

    With Q' = min(first_estimate, second_estimate) of the next trained token of the draw,

        return = Q' within a step;   reward + gamma Q' at the step's last token;   reward at the end of the draw
        advantage = estimate

    At the end of a truncated rollout, Q' is the smaller of `first_estimate_after` and `second_estimate_after`, and the
    return includes gamma Q'. A step without a reward has reward 0.

    Args:
        gamma: discount from step to step, 0 to 1.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.td3 import TwinTargets
        >>> TwinTargets().makes
        (token('advantage'), token('return'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("reward"), step("truncated"), *_OF_CRITICS)
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"), token("return"))

    gamma: float = option(0.99, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `return` on tokens."""
        rows, turns = Rows(batch, "token"), Rows(batch, "step")
        places = np.flatnonzero(rows.valid)
        steps, draws = rows.within("step")[places], rows.draws[places]
        smaller = np.minimum(rows.values("first_estimate"), rows.values("second_estimate"))[places]
        next_estimate = np.append(smaller[1:], 0.0)[: len(places)]
        inside, goes_on = (np.append(ids[1:] == ids[:-1], False)[: len(places)] for ids in (steps, draws))
        after = np.minimum(turns.values("first_estimate_after"), turns.values("second_estimate_after"))
        after = np.where(turns.flags("truncated"), after, 0.0)[steps]
        end_target = np.nan_to_num(turns.values("reward"), nan=0.0)[steps] + self.gamma * np.where(
            goes_on, next_estimate, after
        )
        advantage, target = np.zeros(len(rows)), np.zeros(len(rows))
        advantage[places] = rows.values("estimate")[places]
        target[places] = np.where(inside, next_estimate, end_target)
        return rows.write(advantage=advantage, **{"return": target})


@dataclass(frozen=True)
class DelayedModel(FreezeModel):
    """Train a model only in every n-th iteration, for the first time in the n-th.

    Args:
        every: the number n.

    Example:
        >>> from agentrl_core.recipes.td3 import DelayedModel
        >>> [DelayedModel("policy", every=2).is_due(iteration) for iteration in (1, 2, 3, 4)]
        [True, False, True, False]
    """

    def is_due(self, number: int) -> bool:
        """Return whether the model is frozen (not trained) in the iteration of this number."""
        return self.every is not None and number % self.every != 0


_CRITIC = Value("token_mean", of="logit")

TD3 = Recipe(
    name="td3",
    source="arXiv:1802.09477",
    advantage=TwinTargets(),
    loss=(Train(_CRITIC, model="critic"), Train(_CRITIC, model="second_critic"), Policy(clip=None)),
    replay=Mix(Memory(), share=1.0, replaces=True),
    hooks=(
        DelayedModel("policy", every=2),
        SyncModel("policy", "target_policy", mix=0.005, every=2),
        SyncModel("critic", "target_critic", mix=0.005, every=2),
        SyncModel("second_critic", "second_target", mix=0.005, every=2),
    ),
)
