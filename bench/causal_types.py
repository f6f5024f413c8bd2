"""Build a tiny model of every causal type of transformers; compare each pack layout with the plain forward.

    python bench/causal_types.py                  # all types: writes causal_types.json of the package, docs/models.md
    python bench/causal_types.py llama qwen3_5    # replaces the rows of some types there

Each model has random weights that make its outputs depend on the context. Sequences of several lengths, some with a
shared prefix, run one by one through the model's own forward in fp32. Its log-probs, entropies and gradients are the
reference.
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from agentrl_core.exceptions import AgentRLError
from agentrl_core.model import layouts
from agentrl_core.model.architecture import head_of
from agentrl_core.model.images import IMPOSSIBLE, never_sampled
from agentrl_core.model.layout_check import LAYOUTS, in_token_order, pack_of
from agentrl_core.model.layouts import PackLayout

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "python" / "agentrl_core" / "model" / "causal_types.json"
PAGE = ROOT / "docs" / "models.md"
LIMIT = 1e-5  # nats; share of the largest gradient of a parameter
LARGEST = 20_000_000  # parameters
BEGIN, END = "<!-- table of causal types -->", "<!-- end of the table -->"

_SIZES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SMALL: dict[str, Any] = _SIZES["sizes"]
OVERRIDES: dict[str, dict[str, Any]] = _SIZES["types"]
_OF_ENCODERS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def small_config(kind: str) -> Any:
    """Return a tiny configuration of a type: every size small, every layer type of the default configuration kept."""
    default = CONFIG_MAPPING[kind]()
    values = _small(default, OVERRIDES.get(kind, {}))
    config = type(default)(**values)
    config_class = getattr(transformers, CLASSES[kind]).config_class
    return config if isinstance(config, config_class) else config.get_text_config()


def _small(default: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    known = default.to_dict()
    values = {name: value for name, value in SMALL.items() if known.get(name) is not None or name == "vocab_size"}
    for name in [each for each in known if each.endswith(("_token_id", "_token_index"))]:
        values[name] = 0 if name == "pad_token_id" else 60 if known[name] is not None else None
        if isinstance(known[name], int) and name in ("bos_token_id", "eos_token_id"):
            values[name] = 1
    kinds = known.get("layer_types")
    layers = overrides.get("num_hidden_layers", values.get("num_hidden_layers", 4))
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "hybrid_override_pattern", "block_types"):
        kinds = known.get(name)
        if isinstance(kinds, (list, tuple)) and kinds and isinstance(kinds[0], str):
            distinct = list(dict.fromkeys(kinds))
            values[name] = [distinct[place % len(distinct)] for place in range(layers)]
    for name, sub in known.items():
        if name.endswith("_config") and isinstance(sub, dict) and hasattr(getattr(default, name, None), "to_dict"):
            part = getattr(default, name)
            inner = _small(part, OVERRIDES.get(part.model_type, {}))
            if "vision" in name or "audio" in name or "vq" in name:
                inner = {key: value for key, value in inner.items() if key in _OF_ENCODERS}
            values[name] = inner
    return values | overrides


def build(kind: str) -> Any:
    """Return a tiny model of a type with random weights, in fp32 and eval mode.

    Raises:
        Exception: the model cannot be built; the message is the reason.
    """
    torch.manual_seed(0)
    config = small_config(kind)
    if getattr(config.get_text_config(), "attn_logit_softcapping", None):  # sdpa would leave the soft cap out
        config._attn_implementation = "eager"  # noqa: SLF001 - the library's own switch
    model = getattr(transformers, CLASSES[kind])._from_config(config)  # noqa: SLF001 - keeps the class
    size = sum(parameter.numel() for parameter in model.parameters())
    if size > LARGEST:
        raise ValueError(f"the tiny model has {size} parameters")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(0.2 * noise)
            elif "A_log" not in name and "dt_bias" not in name:
                parameter.add_(0.1 * noise)
    return model.float().eval()


def sequences() -> list[Tensor]:
    """Return rows of 70, 45, 45, 21 and 9 tokens; the second and third share their first 30."""
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(4, 50, (length,), generator=generator) for length in (70, 45, 45, 21, 9)]
    rows[2][:30] = rows[1][:30]
    return rows


def weights_of(count: int) -> tuple[Tensor, Tensor]:
    """Return the factors of all log-probs and entropies in the loss."""
    generator = torch.Generator().manual_seed(3)
    logprob, entropy = torch.randn(2, count, generator=generator).unbind(0)
    return logprob / count, 0.3 * entropy / count


def plain(model: Any, rows: list[Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor], bool]:
    """Return log-probs, entropies and gradients of each row alone, and whether the logits equal the head's output."""
    outputs: list[Tensor] = []
    handle = head_of(model).register_forward_hook(
        lambda _module, _inputs, output: outputs.append(output.detach().clone())
    )
    logprobs, entropies, is_plain = [], [], True
    never = never_sampled(model)  # placeholders of images
    for row in rows:
        logits = model(input_ids=row[None], use_cache=False, return_dict=True).logits[0]
        is_plain &= (
            len(outputs) == 1 and outputs[0].numel() == logits.numel() and torch.equal(outputs[0][0], logits.detach())
        )
        outputs.clear()
        if never is not None:
            logits = logits.index_fill(-1, never, IMPOSSIBLE)
        distribution = logits[:-1].float().log_softmax(-1)
        logprobs.append(distribution.gather(1, row[1:, None]).squeeze(1))
        entropies.append(-(distribution.exp() * distribution).sum(-1))
    handle.remove()
    logprob, entropy = torch.cat(logprobs), torch.cat(entropies)
    return logprob.detach(), entropy.detach(), gradients(model, logprob, entropy), is_plain


def gradients(model: nn.Module, logprob: Tensor, entropy: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the loss, and clear them on the model."""
    by_logprob, by_entropy = weights_of(len(logprob))
    (by_logprob @ logprob + by_entropy @ entropy).backward()
    by_name = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    return by_name


def differences(model: nn.Module, rows: list[Tensor], layout: PackLayout, expected: Any) -> dict[str, float]:
    """The largest differences of log-probs and entropies, in nats, and of gradients, as a share of the largest."""
    pack = pack_of(rows, layout)
    output = pack.run(model)
    logprob, entropy = (in_token_order(pack, each) for each in (output.logprob, output.entropy))
    return compared((logprob.detach(), entropy.detach(), gradients(model, logprob, entropy)), expected)


def compared(actual: Any, expected: Any) -> dict[str, float]:
    """Return the largest differences of log-probs, entropies and gradients.

    The difference of a gradient is divided by the parameter's largest gradient, or by a thousandth of the model's
    largest if that is more. Gradients below a millionth of the model's largest are rounding errors, such as those of a
    key bias, which softmax cancels. Their differences are divided by the model's largest gradient.
    """
    largest = {name: float(gradient.abs().max()) for name, gradient in expected[2].items()}
    overall = max(largest.values())
    scales = {name: max(size, 1e-3 * overall) if size > 1e-6 * overall else overall for name, size in largest.items()}
    return {
        "logprob": float((actual[0] - expected[0]).abs().max()),
        "entropy": float((actual[1] - expected[1]).abs().max()),
        "gradient": max(float((actual[2][n] - g).abs().max()) / scales[n] for n, g in expected[2].items()),
    }


def entry(kind: str) -> dict[str, Any]:
    """Return the row of a type."""
    started = time.process_time()
    row: dict[str, Any] = {"class": CLASSES[kind], "layouts": [], "errors": {}, "reasons": {}}
    try:
        model = build(kind)
    except Exception as error:  # noqa: BLE001 - it is what the table says
        row["not_built"] = _line(error)
        return row
    row["model_type"] = model.config.model_type
    if OVERRIDES.get(kind, {}).get("is_decoder"):
        row["is_decoder"] = True
    rows = sequences()
    try:
        expected = plain(model, rows)
    except Exception as error:  # noqa: BLE001
        row["not_built"] = _line(error)
        return row
    row["plain_logits"] = expected[3]
    changed = [rows[0].clone()]
    changed[0][0] = (changed[0][0] + 1) % 50
    with torch.no_grad():
        before, after = (model(input_ids=each[None], use_cache=False).logits[0] for each in (rows[0], changed[0]))
        cut = model(input_ids=rows[0][None, :40], use_cache=False).logits[0]
    row["context"] = float((before[-1] - after[-1]).abs().max())
    if float((before[:40] - cut).abs().max()) > 1e-3:
        row["refused"] = "a token's logits depend on the tokens behind it"
    for layout in LAYOUTS:
        try:
            errors = differences(model, rows, layout, expected)
        except AgentRLError as error:
            row["reasons"][layout] = _line(error)
            model.zero_grad()
            continue
        except Exception as error:  # noqa: BLE001
            row["reasons"][layout] = f"{type(error).__name__}: {_line(error)}"
            model.zero_grad()
            continue
        row["errors"][layout] = {name: float(f"{value:.1e}") for name, value in errors.items()}
        holds = _holds(errors) or is_rounding(kind, rows, expected, errors)
        if holds and "refused" not in row:
            row["layouts"].append(layout)
        elif not holds:
            row["reasons"][layout] = "differs from the plain forward"
    if not row["layouts"] and "refused" not in row:
        row["refused"] = row["reasons"].get("padded", "no layout equals its plain forward")
    row["seconds"] = round(time.process_time() - started, 1)
    return row


def _holds(errors: dict[str, float], share: float = 1.0) -> bool:
    return max(errors.values()) < share * LIMIT


def is_rounding(kind: str, rows: list[Tensor], expected: Any, errors: dict[str, float]) -> bool:
    """Return whether differences are at most those of plain forwards with weights moved by one unit in the last place.

    Differences of 30 times `LIMIT` are never rounding.
    """
    if not _holds(errors, 30.0):
        return False
    noise = dict.fromkeys(errors, 0.0)
    for seed in range(3):
        model, generator = build(kind), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                parameter.mul_(1.0 + 2.0**-23 * sign)
        moved = compared(plain(model, rows)[:3], expected)
        noise = {name: max(value, moved[name]) for name, value in noise.items()}
    return all(errors[name] <= noise[name] for name in errors)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def main(kinds: list[str]) -> None:
    """Print the rows and write them."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    layouts.entry_of = lambda _kind: {}  # results do not depend on the types tested before
    torch.set_num_threads(1)
    rows = {}
    for kind in kinds or list(CLASSES):
        rows[kind] = entry(kind)
        print(kind, json.dumps({n: v for n, v in rows[kind].items() if n != "class"}), flush=True)
    known = json.loads(TABLE.read_text(encoding="utf-8"))["types"]
    write({kind: rows.get(kind, known.get(kind, {})) for kind in CLASSES} if kinds else rows)


def write(rows: dict[str, dict[str, Any]]) -> None:
    """Write the table of the package and the page."""
    table = {"transformers": transformers.__version__, "types": rows}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    lines = ["| type | layout of `auto` | log-prob | entropy | gradient | others |", "|---|---|---|---|---|---|"]
    for kind, row in rows.items():
        lines.append(table_line(kind, row))
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def table_line(kind: str, row: dict[str, Any]) -> str:
    """Return a line of the page."""
    if "not_built" in row:
        return f"| `{kind}` | not built | | | | {_cell(row['not_built'])} |"
    chosen = row["layouts"][0] if row["layouts"] else "none"
    errors = row["errors"].get(chosen, {})
    numbers = " | ".join(f"{errors[name]:.0e}" if errors else "" for name in ("logprob", "entropy", "gradient"))
    others = [f"{name}: {_cell(reason)}" for name, reason in row["reasons"].items()]
    others += row["layouts"][1:]
    if "refused" in row:
        others.insert(0, _cell(row["refused"]))
    return f"| `{kind}` | {chosen} | {numbers} | {'; '.join(others)} |"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("<", "&lt;")[:120]


if __name__ == "__main__":
    main(sys.argv[1:])
