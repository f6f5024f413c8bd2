"""Teachers: log-probs of a model for tokens that another policy sampled, in their context or after other prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.context_images import ContextImages, consecutive
from agentrl_core.model.pack import Pack
from agentrl_core.operators import columns
from agentrl_core.operators.packing import tree_layout

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.operators.packing import TreeRows

Answers = tuple[Tensor, Tensor, Tensor]
"""Log-prob of each target `[N]`; ids `[N, k]` and log-probs `[N, k]` of the likeliest tokens, -1 and -inf if none."""


def check_tokenizers(tokenizers: tuple[Any, Any]) -> None:
    """Require that the teacher's tokenizer gives every token of the policy the same id.

    Args:
        tokenizers: tokenizers of the policy and of the teacher, of Hugging Face transformers.

    Raises:
        InvalidInputError: an id differs.
    """
    own, theirs = (cast("Mapping[str, int]", each.get_vocab()) for each in tokenizers)
    if own.items() <= theirs.items():
        return
    text, number = min(own.items() - theirs.items(), key=lambda pair: pair[1])
    found = f"has as token {theirs[text]}" if text in theirs else "lacks"
    raise InvalidInputError(
        f"tokenizers: the policy's token {number} is {text!r}, which the teacher's tokenizer {found}; log-probs of "
        "another tokenizer's tokens have no meaning: give a teacher with the policy's tokenizer"
    )


def likeliest_answers(model: nn.Module | Callable[[Pack], Answers], count: int) -> Callable[[Pack], Tensor]:
    """Return a function that maps a pack to `[N, 1 + 2 count]`: log-prob, then log-probs and ids of likeliest tokens.

    Args:
        model: a model, or a function that returns these three.
        count: number of likeliest tokens.
    """
    if isinstance(model, nn.Module):

        def run(pack: Pack) -> Tensor:
            output = pack.run(model, outputs=(f"likeliest_tokens:{count}",))
            return torch.cat([output.logprob[:, None], cast("Tensor", output.likeliest_tokens)], dim=1)

        return run

    def call(pack: Pack) -> Tensor:
        answers: object = model(pack)
        if not (isinstance(answers, tuple) and len(answers) == 3):
            found = f"a tuple of {len(answers)}" if isinstance(answers, tuple) else type(answers).__name__
            raise InvalidInputError(
                f"model: the function returned {found} with top_k={count}; return a tuple of three arrays: log-probs "
                f"of pack.target, and ids and log-probs of the {count} likeliest tokens at each"
            )
        logprob, ids, top = (torch.as_tensor(each) for each in answers)
        expected = (len(pack.target), count)
        if logprob.shape != expected[:1] or ids.shape != expected or top.shape != expected:
            raise InvalidInputError(
                f"model: the function returned arrays of shapes {tuple(logprob.shape)}, {tuple(ids.shape)} and "
                f"{tuple(top.shape)} with top_k={count}; return shapes {expected[:1]}, {expected} and {expected}, one "
                "row for each entry of pack.target"
            )
        return torch.cat([logprob[:, None].double(), top.double(), ids.double()], dim=1)

    return call


class PromptedPacks:
    """Packs of a batch's draws with other prompts, for a teacher that sees more than the policy.

    In each draw, the tokens before its first action are replaced; all tokens after it stay, tool results included.
    Images of the replaced tokens stay too, in their order.

    Args:
        batch: the batch.
        prompts: token ids of a prompt for each draw.
        draws: the draws to run.
        images: images of the batch's contexts; None: no images.
        image_token: the model's placeholder token of images; None: unknown.

    Raises:
        InvalidInputError: a draw has no prompt, two draws with different prompts share a trained token, or a prompt has
            another number of image tokens than the tokens that it replaces.
        UnsupportedError: a draw has several contexts.
    """

    def __init__(
        self,
        batch: Batch,
        prompts: Iterable[ArrayLike],
        draws: NDArray[np.int64],
        *,
        images: ContextImages | None = None,
        image_token: int | None = None,
    ) -> None:
        rows = [columns.integers(row, f"prompts[{place}]").astype(np.int32) for place, row in enumerate(prompts)]
        if len(rows) != batch.num_draws:
            raise InvalidInputError(
                f"prompts has {len(rows)} rows of tokens, but the batch has {batch.num_draws} draws; give one for each"
            )
        self._lengths = np.array([len(row) for row in rows], np.int64)
        wrong = draws[self._lengths[draws] == 0]
        if len(wrong):
            raise InvalidInputError(f"prompts[{wrong[0]}] is empty; give token ids, at least one")
        self._prompts = np.concatenate([np.zeros(0, np.int32), *rows])
        if len(self._prompts) and self._prompts.min() < 0:
            place = next(place for place, row in enumerate(rows) if len(row) and row.min() < 0)
            raise InvalidInputError(f"prompts[{place}] has token {rows[place].min()}; give token ids from 0")
        self._starts = np.cumsum(self._lengths) - self._lengths
        contexts = batch.contexts()
        several = np.flatnonzero(np.bincount(contexts.draws, minlength=batch.num_draws)[draws] > 1)
        if len(several):
            raise UnsupportedError(
                f"prompts: draw {draws[several[0]]} has several contexts, so it has no single prompt; leave it out of "
                "draws="
            )
        self._draws, self._text, self._images = draws, contexts.tokens, images
        acts = np.diff(contexts.steps) > 0
        before = np.zeros(batch.num_draws, np.int64)  # number of tokens that a prompt replaces
        before[contexts.draws[acts]] = contexts.begins[contexts.steps[:-1][acts]]
        begins, ends = (np.zeros(batch.num_draws, np.int64) for _ in range(2))
        begins[contexts.draws], ends[contexts.draws] = contexts.offsets[:-1], contexts.offsets[1:]
        self._begins, self._before = begins + before, before
        self._sizes = self._lengths + ends - self._begins
        self._trained = np.flatnonzero(np.asarray(batch.column("trainable", "token")))
        self._ends_of_trained = np.searchsorted(self._trained, batch.offsets("token")[batch.offsets("step")])
        self._stored, self._positions, self._scale = (
            np.asarray(batch.column(name, "token"))[self._trained]
            for name in ("node_token", "position", "inverse_temperature")
        )
        self._check_shared(batch, rows)
        if images is not None and image_token is not None:
            self._check_placeholders(image_token)

    def _check_shared(self, batch: Batch, rows: list[NDArray[np.int32]]) -> None:
        """Require that draws that share a trained token have equal prompts, so that the token has one value."""
        known: dict[bytes, int] = {}
        prompts = np.array([known.setdefault(row.tobytes(), len(known)) for row in rows], np.int64)
        chosen = self._tokens_of(self._draws)
        draws = np.repeat(self._draws, np.diff(self._ends_of_trained)[self._draws])
        owner = np.zeros(len(batch.column("token", "node_token")), np.int64)
        owner[self._stored[chosen]] = draws
        apart = np.flatnonzero(prompts[owner[self._stored[chosen]]] != prompts[draws])
        if len(apart):
            one, other = draws[apart[0]], owner[self._stored[chosen[apart[0]]]]
            raise InvalidInputError(
                f"prompts: draws {one} and {other} share a sampled token and have different prompts; give branches of "
                "one trajectory the same prompt, or annotate them in separate calls with draws="
            )

    def _check_placeholders(self, image_token: int) -> None:
        """Require that a prompt has as many image placeholders as the tokens that it replaces."""

        def counts(tokens: NDArray[np.int32], begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Any:
            totals = np.cumsum(np.append(0, tokens == image_token))
            return totals[begins + lengths] - totals[begins]

        new = counts(self._prompts, self._starts, self._lengths)[self._draws]
        replaced = counts(self._text, self._begins - self._before, self._before)[self._draws]
        apart = np.flatnonzero(new != replaced)
        if len(apart):
            row = apart[0]
            raise InvalidInputError(
                f"prompts[{self._draws[row]}] has {new[row]} image tokens (id {image_token}), but the prompt that it "
                f"replaces has {replaced[row]}; give the same number, as the images of the draw stay"
            )

    def _tokens_of(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the trained tokens of some draws, one draw after the other."""
        begins, counts = self._ends_of_trained[draws], np.diff(self._ends_of_trained)[draws]
        return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())

    def packs(self, max_tokens: int) -> Iterator[tuple[Pack, TreeRows, NDArray[np.int64]]]:
        """Yield packs of at most `max_tokens` tokens, their layouts, and each token's index among stored tokens, or -1.

        Raises:
            InvalidInputError: a draw exceeds `max_tokens`.
        """
        sizes = self._sizes[self._draws]
        if len(sizes) and sizes.max() > max_tokens:
            raise InvalidInputError(
                f"max_tokens is {max_tokens}, but draw {self._draws[sizes.argmax()]} with its new prompt has "
                f"{sizes.max()} tokens; raise max_tokens"
            )
        yield from (self._pack(self._draws[run]) for run in consecutive(sizes, max_tokens))

    def _pack(self, draws: NDArray[np.int64]) -> tuple[Pack, TreeRows, NDArray[np.int64]]:
        sizes, lengths = self._sizes[draws], self._lengths[draws]
        offsets = np.cumsum(np.append(0, sizes))
        row = np.repeat(np.arange(len(draws)), sizes)
        place = np.arange(offsets[-1]) - offsets[row]
        in_prompt = place < lengths[row]
        tokens = np.empty(len(row), np.int32)
        tokens[in_prompt] = self._prompts[(self._starts[draws][row] + place)[in_prompt]]
        tokens[~in_prompt] = self._text[(self._begins[draws][row] + place - lengths[row])[~in_prompt]]
        chosen = self._tokens_of(draws)
        counts = np.diff(self._ends_of_trained)[draws]
        shifts = offsets[:-1] + lengths - self._before[draws]
        positions = np.repeat(shifts, counts) + self._positions[chosen]
        stored, scale = np.full(len(row), -1, np.int64), np.ones(len(row), np.float32)
        stored[positions], scale[positions] = self._stored[chosen], self._scale[chosen]
        same = {"inverse_temperature": scale}
        if self._images is None:
            tree = tree_layout(tokens, offsets, trained=stored >= 0, same=same)
            return Pack.from_tree(tree, entropy_gradient=False), tree, stored
        begins, before = self._begins[draws], self._before[draws]
        replaced, _, first = self._images.between(begins - before, begins)
        kept, further, later = self._images.between(begins, begins + sizes - lengths)
        places = np.concatenate([offsets[replaced], offsets[kept] + lengths[kept] + further])
        order = np.argsort(places, kind="stable")
        images = np.concatenate([first, later])[order]
        pack, tree = self._images.pack(tokens, offsets, places[order], images, trained=stored >= 0, same=same)
        return pack, tree, stored
