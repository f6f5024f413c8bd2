"""vLLM's second model runner on a CPU, with its Triton kernels interpreted; `-p second_runner` with `ENVIRONMENT`.

Only this runner reports experts. vLLM uses it by default if Triton compiles, that is, on GPUs.
"""

import os
from types import SimpleNamespace

ENVIRONMENT = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
is_chosen = ENVIRONMENT.items() <= os.environ.items()

if is_chosen:
    from triton.backends import backends  # type: ignore[import-untyped]

    # vLLM's build for CPUs uses Triton only if it has a backend for them. An interpreted kernel needs none.
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
