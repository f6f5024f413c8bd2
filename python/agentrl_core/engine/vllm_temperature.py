"""`Sampling.by_entropy` inside vLLM: a logits processor of every `Vllm` engine without speculative decoding.

vLLM looks the class up by name in the process that computes. Importing this module does not import vLLM.
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
"""The extra argument of a request's sampling parameters that has the four numbers of the rule."""
_NAME = "TemperatureByEntropy"
PROCESSOR = f"{__name__}:{_NAME}"
"""The import path of the class, for vLLM."""


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
        """Logits processor that applies each request's entropy rule, as a division of its logits.

        It supports both model runners of vLLM. The first one calls it after the temperature and before top_k and top_p,
        with z / T0, the input of the rule; the most likely token does not change. The second one calls it before the
        temperature, with z.
        """

        def __init__(self, vllm_config: Any, *_: object) -> None:
            del vllm_config
            self._rules: dict[int, tuple[EntropyTemperature, float]] = {}
            """Rules by row (first runner) or slot (second one), each with the temperature still to be applied."""

        def is_argmax_invariant(self) -> bool:
            """Return True: the most likely token does not change."""
            return True

        def update_state(self, batch_update: BatchUpdate | None) -> None:
            """Update the rules after requests were added, removed or moved; called by the first model runner."""
            process_dict_updates(self._rules, batch_update, lambda params, *_: _rule(params, 1.0))

        def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
            """Store the rule of a request by its slot; return whether it has one. Called by the second model runner."""
            self._rules.pop(req_idx, None)
            rule = _rule(sampling_params, sampling_params.temperature)
            if rule is not None:
                self._rules[req_idx] = rule
            return rule is not None

        def apply(self, logits: torch.Tensor, ctx: LogitsContext | None = None) -> torch.Tensor:
            """Divide logits [B, V] in place by each row's temperature factor, and return them."""
            if not self._rules:
                return logits
            slots = range(len(logits)) if ctx is None else ctx.idx_mapping_np.tolist()
            rows: defaultdict[tuple[EntropyTemperature, float], list[int]] = defaultdict(list)
            for row, slot in enumerate(slots):
                if slot in self._rules:
                    rows[self._rules[slot]].append(row)
            for (rule, temperature), members in rows.items():
                z = logits[members] / temperature
                logits[members] /= temperature_factor(z.log_softmax(dim=-1), rule)[0][:, None]
            return logits

    return TemperatureByEntropy


def _rule(params: SamplingParams, temperature: float) -> tuple[EntropyTemperature, float] | None:
    numbers = (params.extra_args or {}).get(ARGUMENT)
    return None if numbers is None or params.temperature == 0.0 else (EntropyTemperature(*numbers), temperature)
