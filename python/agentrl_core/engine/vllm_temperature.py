"""`Sampling.by_entropy` inside vLLM: a processor of logits, which every engine of `Vllm` has.

vLLM looks its class up by name in whatever process computes; importing this module imports no vLLM.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any

from agentrl_core.engine.entropy_temperature import EntropyTemperature

if TYPE_CHECKING:
    import torch
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

ARGUMENT = "agentrl_by_entropy"
"""Under which a request's parameters name the rule: its four numbers."""
_NAME = "TemperatureByEntropy"
PROCESSOR = f"{__name__}:{_NAME}"
"""The name of the class, as vLLM takes it."""


def __getattr__(name: str) -> Any:
    if name != _NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _processor()


@cache
def _processor() -> type[Any]:
    from vllm.v1.sample.logits_processor import LogitsProcessor
    from vllm.v1.sample.logits_processor.builtin import process_dict_updates

    from agentrl_core.engine.token_sampling import temperature_factor

    class TemperatureByEntropy(LogitsProcessor):
        """Divides the logits of a request by what the rule multiplies its temperature with.

        The likeliest token stays the likeliest. So vLLM calls it behind the temperature and before top_k and top_p,
        with the z / T0 that the rule reads.
        """

        def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001 -- vLLM's
            del vllm_config, device, is_pin_memory
            self._rules: dict[int, EntropyTemperature] = {}
            """The rules of the rows that have one."""

        def is_argmax_invariant(self) -> bool:
            """It is."""
            return True

        def update_state(self, batch_update: BatchUpdate | None) -> None:
            """Update the rules after requests came, left and moved."""
            process_dict_updates(self._rules, batch_update, lambda params, *_: _rule(params))

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            """Logits [B, V] at the temperature of each row."""
            rows: defaultdict[EntropyTemperature, list[int]] = defaultdict(list)
            for row, rule in self._rules.items():
                rows[rule].append(row)
            for rule, own in rows.items():
                logits[own] /= temperature_factor(logits[own].log_softmax(dim=-1), rule)[0][:, None]
            return logits

    return TemperatureByEntropy


def _rule(params: SamplingParams) -> EntropyTemperature | None:
    numbers = (params.extra_args or {}).get(ARGUMENT)
    return None if numbers is None or params.temperature == 0.0 else EntropyTemperature(*numbers)
