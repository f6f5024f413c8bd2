"""Outputs of a pack that need more than the model's logits, such as divergences from a teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.architecture import head_of, is_plain_linear, logit_formula_of, unusual_head
from agentrl_core.model.images import IMPOSSIBLE
from agentrl_core.model.logit_statistics import divergence, likeliest_tokens, top_logprobs

Pack: TypeAlias = Any  # model.pack.Pack, whose module uses this one
COMPARED = ("top_logprobs", "divergence", "likeliest_tokens")
"""Names of the answers; each has an argument after a colon."""


class Comparison(NamedTuple):
    """An output computed from each row of logits and a row of a column, such as a divergence from a teacher.

    Attributes:
        name: name of the field of `PackOutput`.
        column: `[N, ...]`, in the order of the pairs.
        compare: computes the output from logits times the inverse temperature, the column and the inverse temperature.
    """

    name: str
    column: Tensor
    compare: Callable[[Tensor, Tensor, Tensor], Tensor]


class TeacherRows(NamedTuple):
    """Hidden states of a teacher for the prediction pairs of a pack.

    Attributes:
        states: `[N, H]`, the inputs of its output layer.
        inner: the teacher's causal model, inside its wrappers.
    """

    states: Tensor
    inner: nn.Module


def is_compared(output: str) -> bool:
    """Return whether an output of `Pack.run` is a comparison, such as `divergence:0.5`."""
    return output.partition(":")[0] in COMPARED


def comparisons_of(
    pack: Pack, outputs: Sequence[str], teacher: TeacherRows | None, vocabulary: int, never: Tensor | None = None
) -> list[Comparison]:
    """Return a Comparison for each requested output that is one (see `is_compared`), in the order of the request.

    Args:
        pack: the pack, on the device of the model.
        outputs: outputs of the run; `top_logprobs:<stream of token ids>`, `divergence:<beta>`,
            `likeliest_tokens:<k>`.
        teacher: the teacher's hidden states, for a divergence.
        vocabulary: number of logits of the model.
        never: `int64[k]`, tokens that have probability 0; None: no token.

    Raises:
        InvalidInputError: there is no teacher, or it has another vocabulary; or two losses request the same output with
            different arguments.
    """
    comparisons: dict[str, Comparison] = {}
    requested = dict.fromkeys(outputs)
    for output in requested:
        name, _, argument = output.partition(":")
        if name not in COMPARED:
            continue
        if name in comparisons:
            first = next(each for each in requested if each.partition(":")[0] == name).partition(":")[2]
            raise InvalidInputError(
                f"outputs: {name!r} is requested with two arguments, {first!r} and {argument!r}; train the two losses "
                "in two stages, or give both the same"
            )
        if name == "top_logprobs":
            ids = pack.streams[argument]
            readable = ids.device.type == "cpu" and len(ids)  # on a GPU, reading would wait for the device
            if readable and int(ids.max()) >= vocabulary:
                raise InvalidInputError(
                    f"{argument} has token {int(ids.max())}, but the model has {vocabulary} logits; give a teacher "
                    "with the same tokenizer"
                )
            comparisons[name] = Comparison(name, ids, lambda logits, ids, _: top_logprobs(logits, ids))
        elif name == "likeliest_tokens":
            comparisons[name] = _likeliest(pack, int(argument))
        else:
            comparisons[name] = _of_teacher(teacher, float(argument), vocabulary, never)
    return list(comparisons.values())


def _likeliest(pack: Pack, count: int) -> Comparison:
    return Comparison("likeliest_tokens", pack.target, lambda logits, *_: likeliest_tokens(logits, count))


def _of_teacher(teacher: TeacherRows | None, beta: float, vocabulary: int, never: Tensor | None) -> Comparison:
    if teacher is None:
        raise InvalidInputError(
            "teacher: the loss compares whole distributions, and no teacher is given; call "
            "pack.run(policy, teacher=teacher)"
        )
    head: Any = head_of(teacher.inner)
    formula = logit_formula_of(teacher.inner)
    if formula is None or not is_plain_linear(head):
        problem = f"it is not known how {type(teacher.inner).__name__} makes logits of its output layer"
        if formula is not None:
            problem = f"its output layer is {unusual_head(head)} instead of an unmodified torch.nn.Linear"
        raise UnsupportedError(
            f"teacher: {problem}; annotate the teacher's top tokens instead: "
            "arl.annotate(batch, 'teacher_logprob', teacher, top_k=64)"
        )
    if len(head.weight) != vocabulary:
        raise InvalidInputError(
            f"teacher: it has {len(head.weight)} logits and the model has {vocabulary}; give a teacher with the same "
            "tokenizer or, if only the padding of the vocabulary differs, use "
            "arl.annotate(batch, 'teacher_logprob', teacher, top_k=64)"
        )
    device = teacher.states.device
    wide = torch.float64 if teacher.states.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        weight = head.weight.to(device, wide)
        bias = None if head.bias is None else head.bias.to(device, wide)

    def compare(logits: Tensor, states: Tensor, scale: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_logits = nn.functional.linear(states.to(wide), weight, bias) * formula.factor
            if formula.softcap is not None:
                teacher_logits = formula.softcap * (teacher_logits / formula.softcap).tanh()
            teacher_logits = teacher_logits * scale[:, None]
            if never is not None:
                teacher_logits = teacher_logits.index_fill(1, never.to(teacher_logits.device), IMPOSSIBLE)
        return divergence(logits, teacher_logits.to(logits.dtype), beta)

    return Comparison("divergence", teacher.states, compare)
