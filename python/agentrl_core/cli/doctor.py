"""`agentrl doctor`: which layouts a model supports, and whether an engine's log-probabilities are the model's."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._terminal import console, escaped, number, print_columns
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.engine import Engine, Request, Sampling
    from agentrl_core.engine.logprob_check import LogprobCheck
    from agentrl_core.model.layout_check import LayoutCheck

_OF_ENGINES: dict[str, Any] = {
    "prompt": None,
    "temperature": [1.0, 0.7],
    "top_p": 1.0,
    "top_k": 0,
    "tokens": 16,
    "version": None,
}
"""Options of the check of an engine, with their defaults."""
_COLUMNS = ("temperature", "top_p", "top_k", "tokens", "cached", "mean", "largest", "position", "cause")


_LAYOUT_COLUMNS = ("layout", "auto", "log-prob", "entropy", "gradient", "result")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `MODEL --engine NAME ...`."""
    command.description = (
        "Compare each layout of packs with the plain forward of the model: log-probs, entropies and gradients, also of "
        "sequences with images if the model takes them (its processor is read from MODEL). With --engine, run prompts "
        "and a second turn of each through an engine and through the model instead, report differences between their "
        "log-probabilities and the likely cause: the version of the weights, the mode of log-probabilities, the "
        "temperature, a position in the sequence, the precision, or other weights. Exits with 1 if the layout of auto, "
        "or the engine, differs from the model."
    )
    command.epilog = (
        "examples:\n  agentrl doctor runs/demo/start\n  agentrl doctor qwen3_next\n"
        "  agentrl doctor runs/demo/start --engine transformers\n  agentrl doctor MODEL --engine vllm\n"
        "  agentrl doctor MODEL --engine http://host:8000\n    --version 12 --json\n\n"
        "columns of layouts:\n"
        "  auto      the layout that layout='auto' takes\n"
        "  log-prob, entropy    largest differences to the plain forward, in nats\n"
        "  gradient  largest difference of a parameter's gradient, as a share of its largest\n\n"
        "columns of engines:\n"
        "  cached    tokens of the requests that the engine had in its cache\n"
        "  mean      mean difference of the log-probabilities of sampled tokens\n"
        "  position of the largest difference in its sequence"
    )
    command.add_argument(
        "model",
        metavar="MODEL",
        help="directory or name of a saved model (for engines, with its tokenizer); or a causal type of transformers, "
        "such as llama, for what was verified on a tiny model of it",
    )
    command.add_argument(
        "--engine",
        nargs="+",
        metavar="NAME",
        help="check an engine: vllm or transformers in this process, or addresses of running vLLM servers",
    )
    command.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "float64"),
        metavar="TYPE",
        help="float32, bfloat16, float16 or float64: what the model is loaded in (default: float32)",
    )
    command.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a question; may be repeated (default: random tokens)"
    )
    command.add_argument(
        "--temperature",
        type=float,
        nargs="+",
        metavar="T",
        help="temperatures to try, above 0 (default: 1 and 0.7)",
    )
    command.add_argument("--top-p", type=float, metavar="P", help="of all samplings (default: 1)")
    command.add_argument("--top-k", type=int, metavar="K", help="of all samplings (default: 0, all)")
    command.add_argument("--tokens", type=int, metavar="N", help="to generate each time (default: 16)")
    command.add_argument("--version", type=int, metavar="N", help="version that the engine's weights must have")
    command.add_argument(
        "--tolerance",
        type=float,
        metavar="D",
        help="largest difference that counts as equal (default: 0.0001 for layouts, whose gradients may differ by ten "
        "times as much, and 0.001 for engines)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def run(model: str, *, engine: list[str] | None, dtype: str | None, json: bool, **options: Any) -> int:
    """Print the findings for each layout, or for each sampling of an engine."""
    from agentrl_core.model.layout_check import check_layouts, checks_of_type

    for name, default in _OF_ENGINES.items():
        if options[name] is None:
            options[name] = default
        elif engine is None:
            raise InvalidInputError(
                f"--{name.replace('_', '-')} has no effect without --engine; add --engine, or omit this option"
            )
    if engine is None and not Path(model).is_dir() and (checks := checks_of_type(model)) is not None:
        if dtype is not None or options["tolerance"] is not None:
            name = "dtype" if dtype is not None else "tolerance"
            raise InvalidInputError(
                f"MODEL: {model!r} is a type that was checked in advance, so --{name} has no meaning; omit --{name}, "
                "or give the directory of a saved model"
            )
        return _print_layouts(f"{model}, as verified on a tiny model of this type", checks, json=json)
    dtype = dtype or "float32"
    if options["tolerance"] is None:
        options["tolerance"] = 1e-4 if engine is None else 1e-3
    if not options["tolerance"] > 0:
        raise InvalidInputError(f"--tolerance is {options['tolerance']:g}; give a number above 0")
    if engine is None:
        policy = _model(model, dtype)
        checks = check_layouts(policy, tolerance=options["tolerance"])
        return _print_layouts(f"{type(policy).__name__} of {model}, {dtype}", checks, json=json)
    samplings = _samplings(options)
    policy = _model(model, dtype)
    generate = _engine(engine, model, policy, _tokenizer(model))
    try:
        findings = _findings(generate, policy, samplings, options)
    finally:
        generate.close()
    if json:
        _print_json(findings)
    else:
        _print_table(findings)
    return 1 if any(finding.cause != "none" for finding in findings) else 0


def _print_layouts(name: str, checks: Sequence[LayoutCheck], *, json: bool) -> int:
    """Print how each layout differs from the plain forward."""
    chosen = [check for check in checks if check.chosen]
    holds = bool(chosen) and all(check.reason is None for check in chosen)
    if json:
        rows = [_finite(dataclasses.asdict(check)) for check in checks]
        _print_document({"model": name, "holds": holds, "layouts": rows})
    else:
        out = console()
        out.print(escaped(name), markup=False, soft_wrap=True)
        cells = [
            (
                check.layout,
                "yes" if check.chosen else "",
                *("" if value is None else f"{value:.0e}" for value in (check.logprob, check.entropy, check.gradient)),
                "equal" if check.reason is None else "differs" if check.logprob is not None else "refused",
            )
            for check in checks
        ]
        print_columns(out, _LAYOUT_COLUMNS, cells)
        out.print()
        for check in checks:
            if check.reason is not None:
                out.print(escaped(f"{check.layout}: {check.reason}"), markup=False, soft_wrap=True)
        layouts = ", and in ".join(check.layout for check in chosen)
        result = f"packs run in the layout {layouts}" if holds else "packs cannot be trusted on it"
        out.print(escaped(result), markup=False, soft_wrap=True)
    return 0 if holds else 1


def _model(path: str, dtype: str) -> Any:
    import torch
    from transformers import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
    )

    try:
        sees = type(AutoConfig.from_pretrained(path, local_files_only=True)) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        return kind.from_pretrained(path, local_files_only=True, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"MODEL: {path} has no causal language model that can be loaded: {error}; give the directory of one, its "
            "name in the cache of Hugging Face or, without --engine, a model type such as llama"
        ) from error


def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"MODEL: {path} has no tokenizer that can be loaded: {error}; save the tokenizer in the same directory"
        ) from error


def _samplings(options: dict[str, Any]) -> list[Sampling]:
    from agentrl_core.engine import Sampling

    for temperature in options["temperature"]:
        if not temperature > 0:
            raise InvalidInputError(
                f"--temperature is {temperature:g}; give numbers above 0, as temperature 0 does not sample"
            )
    return [
        Sampling(temperature, options["top_p"], options["top_k"], options["tokens"])
        for temperature in options["temperature"]
    ]


def _engine(names: list[str], model: str, policy: Any, tokenizer: Any) -> Engine:
    from agentrl_core.engine import Transformers, Vllm, VllmServer

    if names == ["transformers"]:
        return Transformers(policy, tokenizer)
    if names == ["vllm"]:
        return Vllm(model, tokenizer)
    if all(name.startswith(("http://", "https://")) for name in names):
        return VllmServer(names, tokenizer)
    raise InvalidInputError(
        f"--engine is {' '.join(names)}; give vllm alone, transformers alone, or addresses like http://host:8000"
    )


def _findings(generate: Engine, policy: Any, samplings: list[Sampling], options: dict[str, Any]) -> list[LogprobCheck]:
    from agentrl_core.engine import Request
    from agentrl_core.engine.logprob_check import check_logprobs, context_tokens, sample_requests
    from agentrl_core.model.images import placeholder_ids

    def requests(sampling: Sampling) -> list[Request]:
        if not options["prompt"]:
            room = context_tokens(generate, policy)
            excluded = placeholder_ids(policy)
            return sample_requests(generate.vocabulary_size, sampling, context_tokens=room, excluded=excluded)
        prompts = [generate.chat.prompt(text) for text in options["prompt"]]
        return [Request(prompt, seed, sampling) for seed, prompt in enumerate(prompts)]

    return [
        check_logprobs(generate, policy, requests(sampling), version=options["version"], tolerance=options["tolerance"])
        for sampling in samplings
    ]


def _print_table(findings: list[LogprobCheck]) -> None:
    out = console()
    rows = [
        (
            f"{finding.sampling.temperature:g}",
            f"{finding.sampling.top_p:g}",
            str(finding.sampling.top_k),
            number(finding.tokens),
            number(finding.cached_tokens),
            f"{finding.mean:.1e}",
            f"{finding.largest:.1e}",
            number(finding.position),
            finding.cause,
        )
        for finding in findings
    ]
    print_columns(out, _COLUMNS, rows)
    out.print()
    messages = [finding.message for finding in findings]
    if any(finding.cached_tokens == 0 for finding in findings):
        messages.append("no turn reached the engine's prefix cache, which was not compared; give it a longer context")
    for message in dict.fromkeys(messages):
        out.print(escaped(message), markup=False, soft_wrap=True)


def _print_json(findings: list[LogprobCheck]) -> None:
    rows = [_finite(dataclasses.asdict(finding)) for finding in findings]
    document = {"agree": all(finding.cause == "none" for finding in findings), "findings": rows}
    _print_document(document)


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in which numbers that JSON does not have are None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _print_document(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=1)
    print()
