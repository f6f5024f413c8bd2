"""Divide rows made from a batch's contexts among packs, with the images that they contain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl_core.data.sampling_record import images_of_contexts
from agentrl_core.model.pack import Pack
from agentrl_core.model.pack_images import PackImages
from agentrl_core.operators.packing import TreeRows, tree_layout

if TYPE_CHECKING:
    from transformers import ProcessorMixin

    from agentrl_core.data.batch import Batch

_Indices = NDArray[np.int64]


def consecutive(sizes: _Indices, capacity: int) -> Iterator[slice]:
    """Split rows into runs of at most `capacity` tokens, in their order.

    Args:
        sizes: `int64[n]`, tokens of each row, none above `capacity`.
        capacity: most tokens of a run.
    """
    totals, begin = np.cumsum(sizes), 0
    while begin < len(sizes):
        end = int(np.searchsorted(totals, totals[begin] - sizes[begin] + capacity, side="right"))
        yield slice(begin, end)
        begin = end


@dataclass(frozen=True, eq=False)
class ContextImages:
    """The images of a batch's contexts, for packs whose rows are parts of these contexts.

    Attributes:
        hashes: SHA-256 of each image, once.
        places: `int64[I]`, ascending: for each use of an image, the index in `Contexts.tokens` of the first token of
            its node.
        images: `int64[I]`, for each use, the index of the image in `hashes`.
        blob: reads the content of an image by its hash.
        processor: as of `PackImages`.
    """

    hashes: list[bytes]
    places: _Indices
    images: _Indices
    blob: Callable[[bytes], bytes]
    processor: ProcessorMixin | None

    @classmethod
    def of(cls, batch: Batch, processor: ProcessorMixin | None) -> ContextImages | None:
        """Return the images of a batch, or None if its contexts show none."""
        hashes, places, images = images_of_contexts(batch)
        return cls(hashes, places, images, batch.blob, processor) if hashes else None

    def between(self, begins: _Indices, ends: _Indices) -> tuple[_Indices, _Indices, _Indices]:
        """Return, for each image in parts of the contexts, the part, the place in the part, and the image's index.

        Args:
            begins: `int64[n]`, the first token of each part in `Contexts.tokens`.
            ends: `int64[n]`, the token after its last one.

        Returns:
            For each use of an image: the part, the distance from the start of the part, and the image, `int64[J]` each.
        """
        first, end = np.searchsorted(self.places, begins), np.searchsorted(self.places, ends)
        counts = end - first
        part = np.repeat(np.arange(len(counts)), counts)
        use = np.arange(len(part)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        return part, self.places[use] - begins[part], self.images[use]

    def pack(
        self,
        tokens: NDArray[np.int32],
        offsets: _Indices,
        places: _Indices,
        images: _Indices,
        *,
        trained: NDArray[np.bool_],
        same: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> tuple[Pack, TreeRows]:
        """Return a pack of rows with images; rows share a token if the tokens and images up to it are equal.

        Args:
            tokens: `int32[n]`, as of `tree_layout`, like `offsets`, `trained` and `same`.
            offsets: `int64[rows + 1]`.
            places: `int64[J]`, ascending: the index in `tokens` at which each use of an image begins.
            images: `int64[J]`, for each use, the index of the image in `hashes`.
            trained: `bool[n]`.
            same: `float32[n]` each.
        """
        images_at: dict[int, list[int]] = {}
        for place, image in zip(places.tolist(), images.tolist(), strict=True):
            images_at.setdefault(place, []).append(image)
        # Placeholders of different images are equal tokens, so the first one gets an id that depends on the images.
        codes, first_code = tokens.copy(), int(tokens.max(initial=0)) + 1
        known: dict[tuple[int, tuple[int, ...]], int] = {}
        for place, of_place in images_at.items():
            codes[place] = first_code + known.setdefault((int(tokens[place]), tuple(of_place)), len(known))
        tree = tree_layout(codes, offsets, trained=trained, same=same)
        pack = Pack.from_tree(tree, entropy_gradient=False).as_sequences()
        meanings = torch.tensor([token for token, _ in known], dtype=torch.int64)

        def decoded(ids: Tensor) -> Tensor:
            coded = ids >= first_code
            return ids.masked_scatter(coded, meanings[ids[coded] - first_code])

        rows = (pack.input_ids >= first_code).nonzero().squeeze(1)
        sequences = torch.searchsorted(pack.cu_seqlens.long(), rows, right=True) - 1
        sets, sequence, image = [each for _, each in known], [], []
        for row, code in zip(sequences.tolist(), (pack.input_ids[rows] - first_code).tolist(), strict=True):
            sequence += [row] * len(sets[code])
            image += sets[code]
        used, index = np.unique(np.array(image, np.int64), return_inverse=True)
        hashes = tuple(self.hashes[each] for each in used.tolist())
        of_pack = PackImages(hashes, np.array(sequence, np.int64), index, self.blob, self.processor)
        ids, target = decoded(pack.input_ids), decoded(pack.target)
        return replace(pack, input_ids=ids, target=target, images=of_pack), tree
