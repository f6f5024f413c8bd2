"""Compare each layout of packs on a model with the plain forward of its sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from agentrl_core.exceptions import AgentRLError, InvalidInputError
from agentrl_core.model.architecture import causal_model_of, causal_types, device_of
from agentrl_core.model.images import IMPOSSIBLE, never_sampled, placeholder_ids, takes_images
from agentrl_core.model.layouts import PackLayout, layout_of
from agentrl_core.model.pack import Pack, Streams
from agentrl_core.model.synthetic_image_rows import shown_rows
from agentrl_core.operators.packing import tree_layout

if TYPE_CHECKING:
    from transformers import ProcessorMixin

LAYOUTS: tuple[PackLayout, ...] = tuple(layout for layout in get_args(PackLayout) if layout != "auto")
LENGTHS = (70, 45, 45, 21, 9)
"""Tokens of the sequences; the second and third share their first 30."""


@dataclass(frozen=True)
class LayoutCheck:
    """Differences between packs in one layout and the plain forward of each sequence, on one model.

    Attributes:
        layout: layout of the packs; `padded with images` for packs that show images.
        chosen: whether `layout="auto"` selects it.
        reason: why the layout cannot be used; None if it can.
        logprob: largest difference of a log-prob in nats; None if the layout does not run.
        entropy: largest difference of an entropy in nats; None if the layout does not run.
        gradient: largest difference of a parameter's gradient, as a share of the parameter's largest.
    """

    layout: str
    chosen: bool
    reason: str | None
    logprob: float | None = None
    entropy: float | None = None
    gradient: float | None = None


def check_layouts(
    model: nn.Module, *, tolerance: float = 1e-4, processor: ProcessorMixin | None = None
) -> list[LayoutCheck]:
    """Run random sequences through a model, one by one and as a pack in each layout, and compare the results.

    If the model takes images, sequences with images run too. The plain forward gets the pixels of each sequence, and
    the pack shares features of images that several sequences show.

    The compared gradients are those of a loss that weights log-probs and entropies of all tokens at random. Existing
    gradients of the model are lost. The model runs in eval mode, since dropout would differ, and is then set back to
    its previous mode.

    Args:
        model: a causal language model, bare or wrapped (DDP, FSDP, PEFT, torch.compile, Accelerate).
        tolerance: largest difference of log-probs and entropies, and a tenth of that of gradients, that counts as
            equal; 1e-4 suits fp32, and 0.1 bf16.
        processor: of a model that takes images; None: the one saved at `model.name_or_path`.

    Returns:
        One row for `tree`, `sequence` and `padded`, and one for `padded with images` if the model takes images.

    Raises:
        InvalidInputError: `tolerance` is not above 0, `processor` is given for a model that takes no images, or the
            model's vocabulary or context is too small to try.
        UnsupportedError: it contains no causal language model, or several.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from agentrl_core.model.layout_check import check_layouts
        >>> sizes = dict(vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
        >>> rows = check_layouts(LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)))
        >>> [(row.layout, row.chosen, row.reason) for row in rows]
        [('tree', True, None), ('sequence', False, None), ('padded', False, None)]
    """
    if not tolerance > 0:
        raise InvalidInputError(f"check_layouts: tolerance is {tolerance!r}; give a number above 0")
    inner = causal_model_of(model)
    if processor is not None and not takes_images(inner):
        raise InvalidInputError(
            f"check_layouts: processor is given, but {type(inner).__name__} takes no images; leave it out"
        )
    rows = [row.to(device_of(inner)) for row in _sequences(inner)]
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        chosen, refused = _chosen(inner)
        if refused is not None:
            return [LayoutCheck(layout, chosen=False, reason=refused) for layout in LAYOUTS]
        expected = _plain(model, rows)
        checks = [
            replace(_checked(model, pack_of(rows, layout), expected, tolerance), chosen=layout == chosen)
            for layout in LAYOUTS
        ]
        return [*checks, _with_images(model, rows, processor, tolerance)] if takes_images(inner) else checks
    finally:
        for module in training:
            module.training = True
        model.zero_grad()


def checks_of_type(kind: str) -> list[LayoutCheck] | None:
    """Return the results of `check_layouts` for a model type, verified on a tiny model; None if it is not in the table.

    Example:
        >>> from agentrl_core.model.layout_check import checks_of_type
        >>> [row.reason for row in checks_of_type("qwen3")], checks_of_type("unknown")
        ([None, None, None], None)
    """
    entry = causal_types().get(kind)
    if entry is None:
        return None
    reason = entry.get("not_built") or entry.get("refused")
    checks = []
    for layout in LAYOUTS:
        layout_reason = (
            None if layout in entry["layouts"] else reason or entry["reasons"].get(layout, "it was not verified")
        )
        chosen = entry["layouts"][:1] == [layout]
        checks.append(LayoutCheck(layout, chosen, layout_reason, **entry["errors"].get(layout, {})))
    return checks


def _chosen(inner: nn.Module) -> tuple[str | None, str | None]:
    """Return the layout that `auto` selects and None, or None and why no layout can run the model."""
    try:
        return layout_of(inner), None
    except AgentRLError as error:
        return None, str(error)


def _with_images(
    model: nn.Module, rows: list[Tensor], processor: ProcessorMixin | None, tolerance: float
) -> LayoutCheck:
    """Compare a padded pack of sequences with and without images with their plain forward."""
    inner, name = causal_model_of(model), "padded with images"
    try:
        shown = shown_rows(inner, rows, processor)
    except AgentRLError as error:
        return LayoutCheck(name, chosen=True, reason=str(error))
    pack = replace(pack_of(shown.rows, "padded"), images=shown.images)
    trained = torch.isin(pack.target, torch.tensor(placeholder_ids(inner)).to(pack.target), invert=True)
    pack = replace(
        pack,
        source_row=pack.source_row[trained],
        target=pack.target[trained],
        token=pack.token[trained],
        node_token=pack.node_token[trained],
        streams=Streams({each: stream[trained] for each, stream in pack.streams.items()}),
    )
    expected = _plain(model, shown.rows, shown.arguments)
    return replace(_checked(model, pack, expected, tolerance), layout=name, chosen=True)


def _checked(model: nn.Module, pack: Pack, expected: Any, tolerance: float) -> LayoutCheck:
    layout = pack.layout
    try:
        output = pack.run(model)
        logprob, entropy = (in_token_order(pack, each) for each in (output.logprob, output.entropy))
        results = logprob.detach(), entropy.detach(), _gradients(model, logprob, entropy)
    except AgentRLError as error:
        model.zero_grad()
        return LayoutCheck(layout, chosen=False, reason=str(error))
    logprobs, entropies, gradients = (
        float((results[0] - expected[0]).abs().max()),
        float((results[1] - expected[1]).abs().max()),
        _share(results[2], expected[2]),
    )
    equal = max(logprobs, entropies, gradients / 10) <= tolerance
    reason = None if equal else "it differs from the plain forward by more than the tolerance"
    return LayoutCheck(layout, chosen=False, reason=reason, logprob=logprobs, entropy=entropies, gradient=gradients)


def _sequences(inner: nn.Module) -> list[Tensor]:
    config: Any = cast("Any", inner).config.get_text_config()
    vocabulary, context = int(config.vocab_size), getattr(config, "max_position_embeddings", None) or max(LENGTHS)
    if vocabulary < 8 or context < max(LENGTHS):
        raise InvalidInputError(
            f"check_layouts: {type(inner).__name__} has {vocabulary} tokens and a context of {context}; give a model "
            f"with at least 8 tokens and a context of {max(LENGTHS)}"
        )
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(4, vocabulary, (length,), generator=generator) for length in LENGTHS]
    rows[2][:30] = rows[1][:30]
    never = placeholder_ids(inner)
    words = torch.tensor([token for token in range(vocabulary) if token not in never])
    # Placeholders without images would be an error.
    return [torch.where(torch.isin(row, torch.tensor(never)), words[row % len(words)], row) for row in rows]


def pack_of(rows: Sequence[Tensor], layout: PackLayout) -> Pack:
    """Return token rows as a pack, with a prediction pair for each token but the first of each row."""
    device = rows[0].device
    tokens, offsets = torch.cat(list(rows)).cpu().numpy().astype(np.int32), np.cumsum([0, *map(len, rows)])
    trained = np.ones(len(tokens), dtype=np.bool_)
    trained[offsets[:-1]] = False
    if layout == "tree":
        return replace(Pack.from_tree(tree_layout(tokens, offsets, trained=trained)), layout="tree").to(device)
    places = torch.from_numpy(np.flatnonzero(trained))
    lengths = torch.tensor([len(row) for row in rows])
    return Pack(
        input_ids=torch.cat(list(rows)).cpu(),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.from_numpy(offsets).to(torch.int32),
        max_seqlen=int(lengths.max()),
        source_row=places - 1,
        target=torch.cat(list(rows)).cpu()[places],
        token=places,
        node_token=places,
        streams=Streams({"inverse_temperature": torch.ones(len(places))}),
        layout=layout,
    ).to(device)


def _plain(
    model: nn.Module, rows: Sequence[Tensor], images: Sequence[Mapping[str, Tensor]] = ()
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return log-probs, entropies and gradients of each row alone, computed by the model's own forward.

    Placeholders have probability 0, and placeholders in rows are not predicted.
    """
    logprobs, entropies, never = [], [], never_sampled(model)
    for row, arguments in zip(rows, images or [{}] * len(rows), strict=True):
        logits = model(input_ids=row[None], use_cache=False, return_dict=True, **arguments).logits[0, :-1]
        target = row[1:]
        if never is not None:
            logits = logits.index_fill(-1, never, IMPOSSIBLE)
            predicted = torch.isin(target, never, invert=True)
            logits, target = logits[predicted], target[predicted]
        distribution = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
        logprobs.append(distribution.gather(1, target[:, None]).squeeze(1))
        entropies.append(-(distribution.exp() * distribution).sum(-1))
    logprob, entropy = torch.cat(logprobs), torch.cat(entropies)
    return logprob.detach(), entropy.detach(), _gradients(model, logprob, entropy)


def _gradients(model: nn.Module, logprob: Tensor, entropy: Tensor) -> dict[str, Tensor]:
    """Return gradients of random sums of log-probs and entropies, by parameter; empty if no parameter is trained."""
    if not logprob.requires_grad:
        return {}
    generator = torch.Generator().manual_seed(3)
    by_logprob, by_entropy = torch.randn(2, len(logprob), generator=generator).to(logprob).unbind(0)
    model.zero_grad()
    ((by_logprob @ logprob + 0.3 * (by_entropy @ entropy)) / len(logprob)).backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return gradients


def _share(gradients: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    if not expected:
        return 0.0
    floor = 1e-3 * max(float(each.abs().max()) for each in expected.values())
    return max(
        float((gradients[n] - g).abs().max() / max(float(g.abs().max()), floor)) if n in gradients else 1.0
        for n, g in expected.items()
    )


def in_token_order(pack: Pack, values: Tensor) -> Tensor:
    """Return values of pairs in the order of the tokens of the rows, with gradients."""
    if pack.pair_offsets is None or pack.pair_tokens is None:
        return values
    spread = values.repeat_interleave(pack.pair_offsets.diff())
    return spread[pack.pair_tokens.argsort()]
