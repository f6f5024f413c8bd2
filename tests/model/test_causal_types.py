"""Check the table of causal types: each layout in it equals the plain forward, and other layouts are refused."""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from wrapped_ranks import rollouts

import agentrl_core as arl
from agentrl_core.exceptions import UnsupportedError
from agentrl_core.model.layouts import layout_of
from agentrl_core.model.token_probe import Probe

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))
import causal_types  # noqa: E402 - found by the line above

TEXT = causal_types.TABLE.read_bytes()
TABLE: dict[str, dict[str, Any]] = json.loads(TEXT)["types"]
BUILT = [kind for kind, row in TABLE.items() if "not_built" not in row]
FEW = ["llama", "gpt_oss", "llama4_text", "deepseek_v3", "afmoe", "qwen3_5_text", "gemma2"]
# A third of the others runs in `make test`, another third when the table changes.
THIRD = zlib.crc32(TEXT) % 3


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "kind",
    [
        *FEW,
        *(
            pytest.param(kind, marks=pytest.mark.slow if place % 3 == THIRD else pytest.mark.full)
            for place, kind in enumerate(BUILT)
            if kind not in FEW
        ),
    ],
)
def test_layouts_of_a_type_equal_the_plain_forward(kind: str) -> None:
    row, model, rows = TABLE[kind], causal_types.build(kind), causal_types.sequences()
    if "refused" in row:
        for layout in ("auto", "padded"):
            with pytest.raises(UnsupportedError, match="cannot run packs"):
                causal_types.pack_of(rows, layout).run(model)
        return
    expected = causal_types.plain(model, rows)
    assert row["layouts"]
    for layout in causal_types.LAYOUTS:
        if layout in row["layouts"]:
            errors = causal_types.differences(model, rows, layout, expected)
            known_error = max(causal_types.LIMIT, *row["errors"][layout].values())
            # Processors round differently: larger errors must be rounding on this one, by the table's own rule.
            is_small = max(errors.values()) < 3 * known_error
            assert is_small or causal_types.is_rounding(kind, rows, expected, errors), (layout, errors)
        elif model.config.model_type == kind:
            with pytest.raises(UnsupportedError, match=f"layout: .* cannot run packs in the layout {layout}"):
                causal_types.pack_of(rows, layout).run(model)
    if model.config.model_type == kind:
        assert layout_of(model) == row["layouts"][0]


def test_the_table_is_of_all_types_and_the_page_shows_it() -> None:
    assert list(TABLE) == list(causal_types.CLASSES)
    assert len(TABLE) - len(BUILT) <= 10
    page = causal_types.PAGE.read_text(encoding="utf-8")
    for kind, row in TABLE.items():
        assert causal_types.table_line(kind, row) in page
        if "not_built" not in row and "refused" not in row:
            assert "padded" in row["layouts"]


def test_a_type_that_is_not_in_the_table_is_padded() -> None:
    model = causal_types.build("llama")
    model.config.model_type = "llama_of_tomorrow"
    assert layout_of(model) == "padded"
    assert layout_of(model, "tree") == "tree"
    rows = causal_types.sequences()
    expected = causal_types.build("llama")(input_ids=rows[0][None]).logits[0, :-1].log_softmax(-1)
    output = replace(causal_types.pack_of(rows, "sequence"), layout="auto").run(model)
    result = output.logprob[: len(rows[0]) - 1]
    torch.testing.assert_close(result, expected.gather(1, rows[0][1:, None])[:, 0], rtol=0, atol=1e-5)


def test_layers_that_torch_recomputes_are_padded_or_refused() -> None:
    model, rows = causal_types.build("llama"), causal_types.sequences()
    expected = causal_types.plain(model, rows)
    apply_activation_checkpointing(model, check_fn=lambda module: type(module).__name__ == "LlamaDecoderLayer")
    for layout in ("tree", "sequence"):
        with pytest.raises(UnsupportedError, match=r"CheckpointWrapper.*gradient_checkpointing_enable"):
            causal_types.pack_of(rows, layout).run(model)
        with torch.no_grad():
            causal_types.pack_of(rows, layout).run(model)
    named = {name.replace("_checkpoint_wrapped_module.", ""): name for name, _ in model.named_parameters()}
    of_wrapped = {named[name]: gradient for name, gradient in expected[2].items()}
    pack = causal_types.pack_of(rows, "sequence")
    output = replace(pack, layout="auto").run(model)
    logprob, entropy = (causal_types.in_token_order(pack, each) for each in (output.logprob, output.entropy))
    result = logprob.detach(), entropy.detach(), causal_types.gradients(model, logprob, entropy)
    assert max(causal_types.compared(result, (*expected[:2], of_wrapped)).values()) < 1e-4


def test_probes_and_columns_of_a_model_without_trees() -> None:
    """Trees become sequences: the results equal those of a tree-capable model's layouts, one by one."""
    batch, model = rollouts(), causal_types.build("llama")
    probe = Probe([[7, 8, 9]] * batch.num_draws, start=1)
    expected = arl.annotate(batch, "answer_logprob", model, probe=probe, layout="tree")
    for layout in ("sequence", "padded"):
        annotated = arl.annotate(batch, "answer_logprob", model, probe=probe, layout=layout)
        before, right = (each.column("answer_logprob_before", "draw") for each in (annotated, expected))
        assert np.isfinite(right).all()
        np.testing.assert_allclose(before, right, rtol=0, atol=1e-5)
    hybrid = causal_types.build("qwen3_5_text")
    annotated = arl.annotate(batch, "answer_logprob", hybrid, probe=probe)
    assert np.isfinite(annotated.column("answer_logprob_before", "draw")).all()
    (update,) = arl.recipes.GRPO.updates(batch)
    for each, forks in ((model, True), (hybrid, False)):
        assert [pack.has_forks for pack in update.pack(max_tokens=64, model=each)] == [forks]
