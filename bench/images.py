"""Rows with images in a training step, beside the model's own forward and beside text rows of equal length.

    python bench/images.py [--families qwen2_5_vl smolvlm] [--rounds 3]

Models have about 10 M random parameters, and the processors of their families. Two groups of 8 rows show one image
each, of 64 tokens; text rows are as long. Each measurement is a process of its own, on one thread: CPU seconds of a
forward and backward pass over all rows (the fastest of three after an uncounted one), and the peak of the memory above
the loaded model. The sides take turns, `--rounds` times, and the best of each counts. Log-probs and gradients are
compared first, and those of the engine with the model's own forward.

- `pack`: a pack with images. `plain`: the model's own forward with the pixels of each row. `in place`: the same with
  the features of each image, computed once and given by hand.
- `pack text`, `plain text`: the same of text rows.
- `tower once`, `tower of rows`: the vision tower alone, on the image of each group, and on that of each row.
- `engine`, `generate`: a group of 8 answers of 16 tokens, by `engine.Transformers` and by the model's own `generate`,
  without gradients.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import circumstances, keep
from torch import Tensor

import agentrl_core as arl
from agentrl_core import engine, recipes
from agentrl_core.engine import Chat, Request, Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.env import Image
from agentrl_core.model.images import ImageInputs, placeholder_ids

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from vision_models import build, screenshot

GROUPS, MEMBERS, LENGTH, ANSWER = 2, 8, 128, 32
SIDE = 224
TEXT = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6}
TOWER = {"hidden_size": 192, "intermediate_size": 512}
FAMILIES = ("qwen2_5_vl", "smolvlm")
TIMES = 3
SAMPLING = Sampling(max_tokens=16)


@dataclass
class Case:
    """A model, its rows (`ids`: `int64[rows, LENGTH]`), and the number of images in each call of its tower."""

    model: Any
    processor: Any
    batch: arl.Batch
    pictures: list[Image]
    ids: Tensor
    weights: Tensor
    inputs: ImageInputs
    image_counts: list[int]

    @property
    def image(self) -> list[int]:
        """Return the image of each row."""
        return [row // MEMBERS for row in range(len(self.ids))]

    def pixels(self, images: list[int]) -> dict[str, Tensor]:
        """Return the tower's inputs for some images."""
        each = [self.inputs.of(self.pictures[image]) for image in images]
        return {name: torch.cat([one[name] for one in each]) for name in each[0]}

    def arguments(self, ids: Tensor, images: list[int]) -> dict[str, Tensor]:
        """Return the inputs of the model's own forward for rows with one image each."""
        inputs = self.pixels(images)
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (ids == self.model.config.image_token_id).long()
        return inputs


def larger(family: str) -> tuple[Any, Any]:
    """Return a model of about 10 M parameters, and its processor, which turns an image into 64 tokens."""
    model, processor = build(family)
    config = model.config
    for name, value in {**TEXT, "num_key_value_heads": 2}.items():
        setattr(config.text_config, name, value)
    for name, value in TOWER.items():
        setattr(config.vision_config, name, value)
    if family == "qwen2_5_vl":
        config.text_config.layer_types = ["full_attention"] * TEXT["num_hidden_layers"]
        config.vision_config.depth, config.vision_config.out_hidden_size = 4, TEXT["hidden_size"]
        config.vision_config.window_size, config.vision_config.fullatt_block_indexes = 112, [3]
        config.text_config.rope_parameters["mrope_section"] = [8, 12, 12]
        pixels = {"shortest_edge": 28 * 28, "longest_edge": SIDE * SIDE}
        processor.image_processor = transformers.Qwen2VLImageProcessor(size=pixels, patch_size=14)
    else:
        config.vision_config.num_hidden_layers = 4
        config.vision_config.image_size, config.vision_config.patch_size = SIDE, SIDE // 16
        size = {"longest_edge": SIDE}
        processor.image_processor = transformers.SmolVLMImageProcessor(
            size=size, max_image_size=size, do_image_splitting=False
        )
        processor.image_seq_len = 64
    torch.manual_seed(0)
    return type(model)(config).eval(), processor


def case_of(family: str, *, text: bool) -> Case:
    """Return rows with images, or text rows of the same length."""
    model, processor = larger(family)
    chat, forest, random = Chat(processor), arl.Forest(), np.random.default_rng(0)
    never, words = placeholder_ids(model), len(processor.tokenizer)
    allowed = np.setdiff1d(np.arange(16, words), never)
    pictures, rows = [screenshot(seed, SIDE, SIDE) for seed in range(GROUPS)], []
    for group, picture in enumerate(pictures):
        forest.add_group(group, f"look {group}")
        image_prompt = chat.prompt([{"role": "user", "content": ["Look: ", picture]}])
        prompt = np.concatenate([image_prompt, random.choice(allowed, LENGTH - ANSWER - len(image_prompt))])
        assert np.isin(prompt, never).sum() == 64
        if text:
            prompt = np.where(np.isin(prompt, never), random.choice(allowed, len(prompt)), prompt)
        blobs = None if text else [forest.add_blob(picture.content)]
        for member in range(MEMBERS):
            answer = random.choice(allowed, ANSWER)
            trajectory = forest.start(group, member)
            forest.append(trajectory, prompt, kind="prompt", blobs=blobs)
            forest.append(trajectory, answer, kind="action", logprobs=[-5.0] * ANSWER)
            forest.finish(trajectory, reward=float(member))
            rows.append(np.concatenate([prompt, answer]))
    weights = torch.from_numpy(random.normal(size=len(rows) * ANSWER)).float()
    batch = recipes.GRPO.credit(forest.freeze())
    return Case(
        model,
        processor,
        batch,
        pictures,
        torch.from_numpy(np.stack(rows)).long(),
        weights,
        ImageInputs(processor),
        count_images(model),
    )


def pack(case: Case) -> Tensor:
    """Return log-probs of all answers, in the padded layout of packs."""
    (update,) = recipes.GRPO.updates(case.batch)
    options: Any = {"max_tokens": case.ids.numel(), "layout": "padded"}
    (one,) = update.pack(model=case.model, processor=case.processor, **options)
    logprob = one.run(case.model).logprob
    return torch.zeros_like(case.weights).index_add(0, one.token, logprob)


def plain(case: Case, inputs: dict[str, Any]) -> Tensor:
    """Return the same from the model's own forward, with its inputs for images."""
    logits = case.model(input_ids=case.ids, logits_to_keep=ANSWER + 1, use_cache=False, **inputs).logits[:, :-1]
    logprobs = logits.index_fill(-1, torch.tensor(placeholder_ids(case.model)), -1e9).log_softmax(-1)
    return logprobs.gather(-1, case.ids[:, -ANSWER:, None]).flatten()


def in_place(case: Case) -> Tensor:
    """Return the same with features that were computed once for each image."""
    inputs = case.arguments(case.ids, case.image)
    features = case.model.get_image_features(**case.pixels(list(range(GROUPS))), return_dict=True)
    pooled, order = features.pooler_output, case.image
    every = pooled[order] if isinstance(pooled, Tensor) else tuple(pooled[each] for each in order)
    inputs = {name: value for name, value in inputs.items() if not name.startswith("pixel_")}
    return plain(case, {**inputs, "mm_encoder_outputs": {"image": type(features)(pooler_output=every)}})


def tower(case: Case, images: list[int]) -> Tensor:
    """Return the sum of features of the vision tower for some images."""
    pooled = case.model.get_image_features(**case.pixels(images), return_dict=True).pooler_output
    return torch.stack([each.square().mean() for each in pooled])


def sampled(case: Case) -> float:
    """Generate answers to one group with the engine; compare their log-probs with the model's own forward."""
    generate = engine.Transformers(case.model, case.processor)
    prompt = case.ids[0, :-ANSWER].numpy().astype(np.int32)
    requests = [Request(prompt, seed, SAMPLING, images=(case.pictures[0],)) for seed in range(MEMBERS)]
    began = time.process_time()
    segments = generate_all(generate, requests)
    seconds, calls = time.process_time() - began, len(case.image_counts)
    generate.close()
    rows = [torch.from_numpy(np.concatenate([prompt, segment.tokens])).long() for segment in segments]
    for row, segment in zip(rows, segments, strict=True):
        inputs = case.arguments(row[None], [0])
        with torch.no_grad():
            logits = case.model(input_ids=row[None], use_cache=False, **inputs).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.index_fill(-1, torch.tensor(placeholder_ids(case.model)), -1e9).log_softmax(-1)
        expected = logprobs.gather(-1, row[len(prompt) :, None])[:, 0].numpy()
        np.testing.assert_allclose(segment.logprobs, expected, rtol=0, atol=1e-4)
    del case.image_counts[calls:]  # added by the comparison
    return seconds


def generated(case: Case) -> float:
    """Generate answers to the same group with the model's own generation, as long as the engine's."""
    ids = case.ids[:MEMBERS, :-ANSWER]
    inputs = case.arguments(ids, case.image[:MEMBERS])
    tokens = SAMPLING.max_tokens
    began = time.process_time()
    case.model.generate(
        ids, do_sample=True, top_k=0, min_new_tokens=tokens, max_new_tokens=tokens, attention_mask=ids * 0 + 1, **inputs
    )
    return time.process_time() - began


PASSES: dict[str, Callable[[Case], Tensor]] = {
    "plain": lambda case: plain(case, case.arguments(case.ids, case.image)),
    "pack": pack,
    "in place": in_place,
    "plain text": lambda case: plain(case, {}),
    "pack text": pack,
    "tower of rows": lambda case: tower(case, case.image),
    "tower once": lambda case: tower(case, list(range(GROUPS))),
}
SAMPLERS = {"generate": generated, "engine": sampled}
REFERENCES = {"pack": "plain", "in place": "plain", "pack text": "plain text"}


def measure(family: str, side: str, folder: Path) -> None:
    """Measure one side; write its figures, log-probs and gradients."""
    case = case_of(family, text=side.endswith("text"))
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds: list[float] = []
    for _ in range(1 + TIMES):
        case.image_counts.clear()
        case.model.zero_grad()
        if side in SAMPLERS:
            seconds.append(SAMPLERS[side](case))
            continue
        began = time.process_time()
        logprobs = PASSES[side](case)
        (case.weights[: len(logprobs)] @ logprobs / len(logprobs)).backward()
        seconds.append(time.process_time() - began)
        gradients = {name: each.grad for name, each in case.model.named_parameters() if each.grad is not None}
        torch.save((logprobs.detach(), gradients), folder / f"{side}.pt")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures: dict[str, Any] = {
        "cpu_seconds": min(seconds[1:]),
        "tower_calls": len(case.image_counts),
        "tower_images": sum(case.image_counts),
    }
    parameters = sum(each.numel() for each in case.model.parameters())
    figures |= {"peak_mib": (peak - loaded) / 1024, "parameters": parameters}
    Path(folder, f"{side}.json").write_text(json.dumps(figures), encoding="utf-8")


def count_images(model: Any) -> list[int]:
    """Return a list that collects the number of images of each later call of the vision tower."""
    image_counts: list[int] = []
    original = model.model.get_image_features

    @functools.wraps(original)
    def counted(pixel_values: Tensor, *arguments: Any, **named: Any) -> Any:
        grids = named.get("image_grid_thw", arguments[0] if arguments else None)
        image_counts.append(len(pixel_values if grids is None or grids.dim() != 2 else grids))
        return original(pixel_values, *arguments, **named)

    model.model.get_image_features = counted
    return image_counts


def check(file: Path, reference: Path) -> dict[str, float]:
    """Return the differences of log-probs, and of gradients in units of the largest entry of the parameter's."""
    (mine, my_gradients), (others, gradients) = torch.load(file), torch.load(reference)
    apart = {
        "logprob": float((mine - others).abs().max()),
        "gradient": max(
            float((my_gradients[name] - each).abs().max() / each.abs().max().clamp(min=1e-6))
            for name, each in gradients.items()
        ),
    }
    if my_gradients.keys() != gradients.keys() or apart["logprob"] > 1e-4 or apart["gradient"] > 1e-3:
        raise SystemExit(f"{file.stem} differs from {reference.stem}: {apart}")
    return apart


def run(family: str, side: str, folder: Path) -> dict[str, Any]:
    """Measure in a process of its own, which starts with the imports of this one."""
    child = multiprocessing.get_context("fork").Process(target=measure, args=(family, side, folder))
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit(f"{family}, {side}: the process ended with {child.exitcode}")
    figures: dict[str, Any] = json.loads(Path(folder, f"{side}.json").read_text(encoding="utf-8"))
    return figures


def ratios_of(best: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the ratios that have a target in the design."""
    seconds = {side: figures["cpu_seconds"] for side, figures in best.items()}
    return {
        "pack / plain": seconds["pack"] / seconds["plain"],
        "pack / in place": seconds["pack"] / seconds["in place"],
        "pack text / plain text": seconds["pack text"] / seconds["plain text"],
        "pack / pack text": seconds["pack"] / seconds["pack text"],
        "pack without the tower / plain text": (seconds["pack"] - seconds["tower once"]) / seconds["plain text"],
        "plain / plain text": seconds["plain"] / seconds["plain text"],
        "tower of rows / once": seconds["tower of rows"] / seconds["tower once"],
        "generate / engine": seconds["generate"] / seconds["engine"],
        "memory of pack / plain": best["pack"]["peak_mib"] / best["plain"]["peak_mib"],
        "memory of pack / pack text": best["pack"]["peak_mib"] / best["pack text"]["peak_mib"],
    }


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    lines, ratios = [], {}
    for family in options.families:
        best: dict[str, dict[str, Any]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.rounds):
                for side in [*PASSES, *SAMPLERS]:
                    figures = run(family, side, Path(folder))
                    if side in REFERENCES:
                        figures |= check(Path(folder, f"{side}.pt"), Path(folder, f"{REFERENCES[side]}.pt"))
                    if side not in best or figures["cpu_seconds"] < best[side]["cpu_seconds"]:
                        best[side] = figures
        print(f"{family}, {best['plain']['parameters'] / 1e6:.1f} M parameters")
        print(f"{'side':<16}{'CPU s':>9}{'peak MiB':>10}{'tower calls':>13}{'images':>8}")
        for side, figures in best.items():
            lines.append({"family": family, "side": side, **figures})
            seconds, peak = figures["cpu_seconds"], figures["peak_mib"]
            print(f"{side:<16}{seconds:9.3f}{peak:10.0f}{figures['tower_calls']:13d}{figures['tower_images']:8d}")
        ratios[family] = ratios_of(best)
        for name, ratio in ratios[family].items():
            print(f"{name:<40}{ratio:8.3f}", flush=True)
        keep({"bench": "images", **circumstances(), "lines": lines, "ratios": ratios})


if __name__ == "__main__":
    main()
