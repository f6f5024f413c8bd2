"""Hand-made packs and tiny models: inputs for the tests of packs and losses, without a batch."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.masking_utils import eager_mask

from agentrl_core.model.pack import Pack, Streams

VOCABULARY = 37
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EAGER = "eager_in_double"
WINDOW = 4
UNCAPPED = {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None}
FAMILIES = {
    "gemma": (GemmaConfig, GemmaForCausalLM, {"head_dim": 8}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, UNCAPPED),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, UNCAPPED),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
}
# The second layer of Qwen2, the first of both Gemmas, and both of Mistral use a sliding window.
WINDOWED = {
    "gemma2": {
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 0.2,
        "final_logit_softcapping": 0.7,
        "attn_implementation": EAGER,
    },
    "gemma3": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
}
for _family, _options in WINDOWED.items():
    _config, _kind, _extra = FAMILIES[_family]
    FAMILIES[f"{_family}, window"] = (_config, _kind, {**_extra, **_options})


def tiny_model(
    family: str = "llama", dtype: torch.dtype = torch.float64, *, seed: int = 7, **options: object
) -> PreTrainedModel:
    """Return a random model of two layers, with grouped-query attention; all tests make their models here."""
    config, kind, extra = FAMILIES[family]
    torch.manual_seed(seed)
    model = kind(config(**{**SHAPE, **extra, **options}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # no weight keeps its neutral initial value
    model = model.to(dtype)
    if dtype == torch.float64:
        _norms_in_double(model)
        if model.config._attn_implementation == "eager":  # Gemma 2 has no other one in transformers 5.24
            model.config._attn_implementation = EAGER
    return model


class _SoftmaxInDouble(TorchFunctionMode):
    """Compute the softmax of attention in fp64; models use fp32 whatever their dtype, which is too coarse here too."""

    def __torch_function__(self, function, _types, args=(), kwargs=None) -> object:
        kwargs = dict(kwargs or {})
        if function is torch.nn.functional.softmax and args[0].dtype == torch.float64:
            kwargs["dtype"] = torch.float64
        return function(*args, **kwargs)


def _eager_in_double(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
    """Use the model's own attention, the only one in the library with soft caps."""
    attention = sys.modules[type(module).__module__].eager_attention_forward
    with _SoftmaxInDouble():
        return attention(module, *args, **kwargs)


AttentionInterface.register(EAGER, _eager_in_double)
AttentionMaskInterface.register(EAGER, eager_mask)


def _norms_in_double(model: PreTrainedModel) -> None:
    """Compute norms in fp64; the library uses fp32 whatever the model's dtype, too coarse for sums in another order."""
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            shift = 1.0 if kind.startswith("Gemma") else 0.0
            epsilon = module.eps if hasattr(module, "eps") else module.variance_epsilon
            module.forward = functools.partial(_norm, module.weight, shift, epsilon)


def _norm(weight: torch.Tensor, shift: float, epsilon: float, states: torch.Tensor) -> torch.Tensor:
    return (shift + weight) * states * (states.square().mean(-1, keepdim=True) + epsilon).rsqrt()


@dataclass(frozen=True)
class Ragged:
    """Random sequences: tokens, which of them are trained, and the columns that the loss reads."""

    tokens: list[NDArray[np.int64]]
    trained: list[NDArray[np.bool_]]
    old_logprob: list[NDArray[np.float64]]
    reference_logprob: list[NDArray[np.float64]]
    inverse_temperature: list[NDArray[np.float64]]
    advantage: NDArray[np.float64]

    @classmethod
    def random(cls, lengths: list[int], seed: int = 0) -> Ragged:
        """Return sequences of these lengths; about half of the tokens after the first are trained."""
        rng = np.random.default_rng(seed)

        def each(low: float, high: float) -> list[NDArray[np.float64]]:
            return [rng.uniform(low, high, length) for length in lengths]

        trained = [rng.random(length) < 0.5 for length in lengths]
        for row in trained:
            row[0] = False
        return cls(
            tokens=[rng.integers(0, VOCABULARY, length) for length in lengths],
            trained=trained,
            old_logprob=each(-5.0, -2.5),
            reference_logprob=each(-5.0, -2.5),
            inverse_temperature=each(0.5, 2.0),
            advantage=rng.normal(size=len(lengths)),
        )

    def flat(self, column: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the trained entries of a column, concatenated."""
        return np.concatenate([values[mask] for values, mask in zip(column, self.trained, strict=True)])

    def weights(self, denominator: str, constant: float = 1.0) -> NDArray[np.float64]:
        """Return the weight of each trained token, by the definition of the denominators."""
        counts = np.array([mask.sum() for mask in self.trained], dtype=np.float64)
        draws = (counts > 0).sum()
        per_row = {
            "token_mean": np.full(len(counts), 1.0 / counts.sum()),
            "sequence_mean": 1.0 / np.maximum(counts, 1.0) / draws,
            "constant": np.full(len(counts), 1.0 / constant / draws),
        }[denominator]
        return np.repeat(per_row, counts.astype(int))

    def plan(self) -> SimpleNamespace:
        """Return the plan of one pack with all sequences, as made from a batch."""
        ends = [int(np.flatnonzero(mask).max(initial=-1)) + 1 for mask in self.trained]
        starts = np.cumsum([0, *ends])
        rows = [start + np.flatnonzero(mask) for start, mask in zip(starts, self.trained, strict=False)]
        count = sum(len(row) for row in rows)
        return SimpleNamespace(
            layout="sequence",
            pair_offsets=np.arange(count + 1),
            pair_tokens=np.arange(count),
            input_ids=np.concatenate([tokens[:end] for tokens, end in zip(self.tokens, ends, strict=True)]),
            position_ids=np.concatenate([np.arange(end) for end in ends]),
            cu_seqlens=np.unique(starts).astype(np.int32),
            max_seqlen=max(ends),
            source_row=np.concatenate(rows) - 1,
            target=self.flat(self.tokens),
            token=np.arange(count),
            node_token=np.arange(count),
        )

    def streams(self, weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return the streams of that pack, in fp64 so that comparisons can be tight."""
        counts = [int(mask.sum()) for mask in self.trained]
        advantage = np.repeat(self.advantage, counts) * weights
        return {
            "inverse_temperature": self.flat(self.inverse_temperature),
            "advantage_positive": advantage.clip(min=0.0),
            "advantage_negative": advantage.clip(max=0.0),
            "old_logprob": self.flat(self.old_logprob),
            "reference_logprob": self.flat(self.reference_logprob),
            "weight_kl": weights,
            "weight_entropy": weights,
        }

    def pack(self, denominator: str = "token_mean", constant: float = 1.0) -> Pack:
        """Return all sequences in one pack."""
        return Pack.from_plan(self.plan(), self.streams(self.weights(denominator, constant)))

    def padded(self, column: list[NDArray[np.float64]]) -> torch.Tensor:
        """Return a column as `[sequences, longest]`, zero after the end."""
        longest = max(len(values) for values in column)
        return torch.from_numpy(np.stack([np.pad(values, (0, longest - len(values))) for values in column]))


def loose_pack(streams: dict[str, torch.Tensor]) -> Pack:
    """Return a pack with streams only, for losses that read log-probs instead of a model."""
    empty = torch.zeros(0, dtype=torch.int64)
    return Pack(
        input_ids=empty,
        position_ids=empty,
        cu_seqlens=torch.zeros(1, dtype=torch.int32),
        max_seqlen=0,
        source_row=empty,
        target=empty,
        token=empty,
        node_token=empty,
        streams=Streams(streams),
    )


def random_case(seed: int) -> tuple[Ragged, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ragged rows (one untrained), their mask, and log-probs that are clipped in every way."""
    rng = np.random.default_rng(seed)
    rows = Ragged.random([int(length) for length in rng.integers(2, 40, size=12)], seed=seed)
    rows.trained[3][:] = False
    old = rows.padded(rows.old_logprob)
    logprob = old + torch.from_numpy(rng.normal(scale=0.7, size=old.shape))
    mask = rows.padded([trained.astype(np.float64) for trained in rows.trained])
    return rows, old, logprob, mask
