"""A token of the transformers engine stays in the files that compute it."""

import gc
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import agentrl_core as arl
from agentrl_core import engine
from agentrl_core.engine import Request, Sampling
from agentrl_core.engine.base import generate_all

PACKAGE = f"{Path(arl.__file__).parent}/"


def moves(model: Any, tokenizer: Any, tokens: int) -> Counter[tuple[str, str]]:
    """Return calls from one file of the package to another while an engine generates this many tokens.

    There is one request: several may arrive at one step or at two. Garbage collection is off, since closing a generator
    of another test is a call as well. No other test samples at this temperature: an engine creates the sampling
    parameters that rows share once, and keeps them.
    """
    calls = Counter[tuple[str, str]]()

    def note(frame: FrameType, event: str, _: object) -> None:
        name, caller = frame.f_code.co_filename, frame.f_back
        if event != "call" or not name.startswith(PACKAGE):
            return
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != name:
            calls[Path(caller.f_code.co_filename).name, Path(name).name] += 1

    generate = engine.Transformers(model, tokenizer)
    prompt = np.random.default_rng(0).integers(0, 80, 9, dtype=np.int32)
    before = sys.getprofile()
    gc.collect()
    gc.disable()
    threading.setprofile(note)  # the engine's thread starts with the first request
    try:
        generate_all(generate, [Request(prompt, 0, Sampling(temperature=0.8125, max_tokens=tokens))])
    finally:
        threading.setprofile(before)
        gc.enable()
        generate.close()
    return calls


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_token_takes_no_move_between_files(family: str, make_model: Any, tokenizer: Any) -> None:
    model = make_model(family, attn_implementation="eager") if family == "gemma2" else make_model(family)
    short, long = (moves(model, tokenizer, tokens) for tokens in (8, 32))
    assert short[("running_batch.py", "decoding.py")] >= 4
    assert not long - short
