"""Pretrained models as starts: equal for every seed, so that seeds differ in sampling alone."""

from __future__ import annotations

import hashlib
from typing import Any

import records
import torch
from warm_start import Start
from worlds import World


def load(world: World) -> Start:
    """Return the pretrained model of a world.

    Raises:
        FileNotFoundError: the model's folder is missing.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    home = records.ROOT / world.pretrained
    weights = home / "model.safetensors"
    if not weights.is_file():
        raise FileNotFoundError(f"{world.name}: {world.pretrained} has no model; make it by bench/smollm2.py")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    model: Any = AutoModelForCausalLM.from_pretrained(home, dtype=torch.float32)
    model.eval()
    return Start(model, model, AutoTokenizer.from_pretrained(home), digest)
