"""BuPO: train a middle layer as the policy for 30 iterations, then the whole model (arXiv:2512.19673).

The output of a layer k defines a policy too: pi_k = softmax(W h_k / T), with the model's unembedding W. In the first 30
iterations pi_k is trained instead of the policy, which changes W and the layers up to k:

    L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A), at least 10 A if A < 0,   r = p / p_old

Up to iteration 30, p and p_old are probabilities under pi_k, afterwards under the whole model. The whole model samples
all rollouts, so r is not an importance ratio in the first phase.

In the recipe pi_k is the model `internal`, which `internal_policy(model)` creates: k = 5, counted from 0, as in the
script for Qwen3-4B.

Equations:
    Read: the authors' code and the introduction of its repository.

    - C1, internal policy: `internal_policy`, without the final norm before W.
    - C2, phase: `FreezeModel("policy", until=31)` and `FreezeModel("internal", since=31)`.
    - C3, loss: `Policy`, clip range 0.2, dual clip 10, mean over tokens, for `internal` and for the policy.
    - C4, advantage: `GroupRelative`, std with divisor n - 1, plus 1e-6; the advantage of a group of one is 0 here, and
      its reward in verl (`singleton="raw"`).

Differs:
    - Optimizer: the phases share one in the code; `agentrl train` and most loops have one for each model.

Needs: the model `internal`; the column `recomputed_logprob` from `arl.annotate` in each iteration, computed by
`internal` up to iteration 30 and by the policy afterwards.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Clip, Policy, Train
from agentrl_core.schedule import FreezeModel

if TYPE_CHECKING:
    from torch import nn


def internal_policy(model: nn.Module, layer: int = 5) -> nn.Module:
    """Return the policy of a middle layer: the output head on the layer's hidden states, without the final norm.

    It shares its parameters with the model: training it changes the embedding, the layers up to `layer` and the head.

    Args:
        model: a causal language model from transformers, without wrappers, whose decoder has `layers` and `norm`, such
            as Qwen3 or Llama.
        layer: number of the layer whose output is used, counted from 0.

    Returns:
        A model for `Pack.run` and `arl.annotate`, in the same train or eval mode as `model`.

    Raises:
        InvalidInputError: the model has no such layer.
    """
    import torch

    full_model = cast("Any", model)
    count = len(full_model.get_decoder().layers)
    if not 0 <= layer < count:
        raise InvalidInputError(f"layer: the model has no layer {layer}; give one of 0 to {count - 1}")
    config = copy.deepcopy(full_model.config)
    config.num_hidden_layers = layer + 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: layer + 1]
    with torch.device("meta"):
        internal = type(full_model)(config)
    internal.get_decoder().norm = torch.nn.Identity()
    for kind in ("named_parameters", "named_buffers"):
        tensors = dict(getattr(full_model, kind)(remove_duplicate=False))
        for name, _ in list(getattr(internal, kind)(remove_duplicate=False)):
            owner, _, last = name.rpartition(".")
            setattr(internal.get_submodule(owner), last, tensors[name])
    return cast("nn.Module", internal.train(model.training))


_LOSS = Policy(clip=Clip(dual=10.0))

BU_PO = Recipe(
    name="bu_po",
    source="arXiv:2512.19673",
    advantage=GroupRelative(),
    loss=(Train(_LOSS, model="internal"), Train(_LOSS)),
    hooks=(FreezeModel("policy", until=31), FreezeModel("internal", since=31)),
    old_logprob="recomputed",
    minibatches=4,
)
