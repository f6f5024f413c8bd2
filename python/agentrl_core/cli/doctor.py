"""`agentrl doctor`: compare an engine's log-probabilities with the model's."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._view import console, escaped, number, print_columns
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.engine import Engine, Request, Sampling
    from agentrl_core.engine.logprob_check import LogprobCheck

_COLUMNS = ("temperature", "top_p", "top_k", "tokens", "cached", "mean", "largest", "position", "cause")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add `MODEL --engine NAME ...`."""
    command.description = (
        "Run prompts, and a second turn of each, through an engine and through the model. Report differences between "
        "their log-probabilities and the likely cause: the version of the weights, the mode of log-probabilities, the "
        "temperature, a position in the sequence, the precision, or other weights. Exits with 1 if they differ."
    )
    command.epilog = (
        "examples:\n  agentrl doctor runs/demo/start --engine transformers\n  agentrl doctor MODEL --engine vllm\n"
        "  agentrl doctor MODEL --engine http://host:8000\n    --version 12 --json\n\n"
        "columns:\n"
        "  cached    tokens of the requests that the engine had in its cache\n"
        "  mean      mean difference of the log-probabilities of sampled tokens\n"
        "  position of the largest difference in its sequence"
    )
    command.add_argument("model", metavar="MODEL", help="directory of the saved policy and its tokenizer")
    command.add_argument(
        "--engine",
        nargs="+",
        default=["vllm"],
        metavar="NAME",
        help="vllm or transformers in this process, or addresses of running vLLM servers (default: vllm)",
    )
    command.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a question; may be repeated (default: random tokens)"
    )
    command.add_argument(
        "--temperature",
        type=float,
        nargs="+",
        default=[1.0, 0.7],
        metavar="T",
        help="temperatures to try, above 0 (default: 1 and 0.7)",
    )
    command.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of all samplings (default: 1)")
    command.add_argument("--top-k", type=int, default=0, metavar="K", help="of all samplings (default: 0, all)")
    command.add_argument("--tokens", type=int, default=16, metavar="N", help="to generate each time (default: 16)")
    command.add_argument("--version", type=int, metavar="N", help="version that the engine's weights must have")
    command.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        metavar="D",
        help="largest difference that counts as equal (default: 0.001)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def run(model: str, *, engine: list[str], json: bool, **options: Any) -> int:
    """Print the findings for each sampling."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    samplings = _samplings(options)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        policy: Any = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"{model} has no model with a tokenizer: {error}; give the directory of both"
        ) from error
    generate = _engine(engine, model, policy, tokenizer)
    try:
        findings = _findings(generate, policy, samplings, options)
    finally:
        generate.close()
    if json:
        _print_json(findings)
    else:
        _print_table(findings)
    return 1 if any(finding.cause != "none" for finding in findings) else 0


def _samplings(options: dict[str, Any]) -> list[Sampling]:
    from agentrl_core.engine import Sampling

    for temperature in options["temperature"]:
        if not temperature > 0:
            raise InvalidInputError(
                f"--temperature {temperature:g}: temperature 0 does not sample; give numbers above 0"
            )
    if not options["tolerance"] > 0:
        raise InvalidInputError(f"--tolerance {options['tolerance']:g}: give a number above 0")
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
    raise InvalidInputError(f"--engine {' '.join(names)}: give vllm, transformers, or addresses like http://host:8000")


def _findings(generate: Engine, policy: Any, samplings: list[Sampling], options: dict[str, Any]) -> list[LogprobCheck]:
    from agentrl_core.engine import Request
    from agentrl_core.engine.logprob_check import check_logprobs, sample_requests

    def requests(sampling: Sampling) -> list[Request]:
        if not options["prompt"]:
            return sample_requests(generate.vocabulary_size, sampling)
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
    for message in dict.fromkeys(finding.message for finding in findings):
        out.print(escaped(message), markup=False, soft_wrap=True)


def _print_json(findings: list[LogprobCheck]) -> None:
    rows = [dataclasses.asdict(finding) for finding in findings]
    for row in rows:
        row.update({name: None for name in ("mean", "largest") if not math.isfinite(row[name])})
    document = {"agree": all(finding.cause == "none" for finding in findings), "findings": rows}
    json.dump(document, sys.stdout, indent=1)
    print()
