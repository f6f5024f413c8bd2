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
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

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
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as ProcessorOfV2

    from agentrl_core.engine.decoding import temperature_factor

    class TemperatureByEntropy(LogitsProcessor, ProcessorOfV2):
        """Divides the logits of a request by what the rule multiplies its temperature with.

        It is a processor of both model runners of vLLM. The first one calls it behind the temperature and before top_k
        and top_p, with the z / T0 that the rule reads: the likeliest token stays the likeliest. The second one calls it
        before the temperature, with z.
        """

        def __init__(self, vllm_config: Any, *_: object) -> None:
            del vllm_config
            self._rules: dict[int, tuple[EntropyTemperature, float]] = {}
            """The rules of the rows (first runner) or slots (second one) that have one, and what is left of T0."""

        def is_argmax_invariant(self) -> bool:
            """It is."""
            return True

        def update_state(self, batch_update: BatchUpdate | None) -> None:
            """Update the rules after requests came, left and moved: the first runner."""
            process_dict_updates(self._rules, batch_update, lambda params, *_: _rule(params, 1.0))

        def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
            """Take the rule of a request in a slot: the second runner."""
            self._rules.pop(req_idx, None)
            rule = _rule(sampling_params, sampling_params.temperature)
            if rule is not None:
                self._rules[req_idx] = rule
            return rule is not None

        def apply(self, logits: torch.Tensor, ctx: LogitsContext | None = None) -> torch.Tensor:
            """Logits [B, V]."""
            if not self._rules:
                return logits
            slots = range(len(logits)) if ctx is None else ctx.idx_mapping_np.tolist()
            rows: defaultdict[tuple[EntropyTemperature, float], list[int]] = defaultdict(list)
            for row, slot in enumerate(slots):
                if slot in self._rules:
                    rows[self._rules[slot]].append(row)
            for (rule, temperature), own in rows.items():
                z = logits[own] / temperature
                logits[own] /= temperature_factor(z.log_softmax(dim=-1), rule)[0][:, None]
            return logits

    return TemperatureByEntropy


def _rule(params: SamplingParams, temperature: float) -> tuple[EntropyTemperature, float] | None:
    numbers = (params.extra_args or {}).get(ARGUMENT)
    return None if numbers is None or params.temperature == 0.0 else (EntropyTemperature(*numbers), temperature)
