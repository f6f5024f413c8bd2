"""Loss and parameter gradients of packs equal those of a plain padded PyTorch implementation, in fp64."""

from __future__ import annotations

import pytest
import torch
from hand_made import Ragged, tiny_model
from torch import Tensor, nn

from agentrl_core import loss

POLICIES = {
    "plain": loss.Policy(clip=None),
    "clip": loss.Policy(clip=loss.Clip(0.2, 0.28, dual=3.0)),
    "everything": loss.Policy(clip=loss.Clip(), kl=loss.KL(0.05), entropy=0.01, aggregate="sequence_mean"),
    "constant": loss.Policy(aggregate="constant", constant=25.0),
}


def padded_loss(model: nn.Module, rows: Ragged, policy: loss.Policy) -> Tensor:
    """Compute the textbook loss: pad, mask, full logits, PPO with min and clamp, then the mean of `aggregate`."""
    tokens = rows.padded(rows.tokens)
    lengths = torch.tensor([len(row) for row in rows.tokens])
    attention = torch.arange(tokens.shape[1]) < lengths[:, None]
    logits = model(input_ids=tokens, attention_mask=attention).logits[:, :-1]
    logits = logits * rows.padded(rows.inverse_temperature)[:, 1:, None]
    distribution = logits.log_softmax(-1)
    logprob = distribution.gather(2, tokens[:, 1:, None]).squeeze(2)
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    mask = rows.padded([trained.astype(float) for trained in rows.trained])[:, 1:]
    advantage = torch.from_numpy(rows.advantage)[:, None]

    ratio = (logprob - rows.padded(rows.old_logprob)[:, 1:]).exp()
    objective = ratio * advantage
    if policy.clip is not None:
        clipped = ratio.clamp(1 - policy.clip.low, 1 + policy.clip.high) * advantage
        objective = torch.minimum(objective, clipped)
        if policy.clip.dual is not None:
            objective = torch.where(advantage < 0, torch.maximum(objective, policy.clip.dual * advantage), objective)
    each = -objective - policy.entropy * entropy
    if policy.kl is not None:
        difference = rows.padded(rows.reference_logprob)[:, 1:] - logprob
        each = each + policy.kl.coefficient * (difference.exp() - difference - 1)

    counts = mask.sum(1)
    sums = (each * mask).sum(1)
    draws = (counts > 0).sum()
    if policy.aggregate == "token_mean":
        return sums.sum() / counts.sum()
    if policy.aggregate == "sequence_mean":
        return (sums / counts.clamp(min=1)).sum() / draws
    return sums.sum() / policy.constant / draws


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_loss_and_gradients(family: str, policy: loss.Policy, seed: int) -> None:
    model = tiny_model(family)
    rows = Ragged.random([13, 4, 25, 8, 2, 8, 19], seed=seed)
    expected = padded_loss(model, rows, policy)
    expected.backward()
    expected_gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    pack = rows.pack(policy.aggregate, policy.constant or 1.0)
    value, _ = policy(pack.run(model), pack)
    value.backward()
    assert value.item() == pytest.approx(expected.item(), abs=1e-9)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected_gradients[name], rtol=0, atol=1e-9, msg=name)
    assert max(gradient.abs().max() for gradient in expected_gradients.values()) > 1e-3
