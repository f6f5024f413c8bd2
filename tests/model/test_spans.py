"""Spans of tokens: compare tags with a reader that goes token by token, and a parser with letters."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from updates import grow

from agentrl_core import Batch, Forest, annotate, recipes
from agentrl_core.component import Where
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.model.spans import Parsed, Spans, Tags
from agentrl_core.model.token_probe import Probe

TAGS = st.lists(st.integers(0, 2), min_size=1, max_size=3)


def spans_of(spans: Spans, actions: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    tokens = np.array([token for action in actions for token in action], np.int32)
    begins, ends = spans.find(tokens, np.cumsum([0, *map(len, actions)]))
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def read(action: Sequence[int], opening: list[int], closing: list[int], *, tags: bool, begun: bool) -> list:
    """Return the spans of an action, token by token."""
    spans, place, open_at = [], 0, 0 if begun and action else None
    inner = 0
    while place < len(action):
        if open_at is None and list(action[place : place + len(opening)]) == opening:
            open_at, inner = place, place + len(opening)
            place = inner
        elif open_at is not None and list(action[place : place + len(closing)]) == closing:
            spans.append((open_at, place + len(closing)) if tags else (inner, place))
            place += len(closing)
            open_at = None
        else:
            place += 1
    if open_at is not None:
        spans.append((open_at, len(action)) if tags else (inner, len(action)))
    return spans


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=14), max_size=5), TAGS, TAGS, st.booleans(), st.booleans())
def test_tags_are_read_from_token_to_token(
    actions: list[list[int]], opening: list[int], closing: list[int], tags: bool, begun: bool
) -> None:
    expected, offset = [], 0
    for action in actions:
        spans = read(action, opening, closing, tags=tags, begun=begun)
        expected += [(begin + offset, end + offset) for begin, end in spans]
        offset += len(action)
    assert spans_of(Tags(opening, closing, tags=tags, begun=begun), actions) == expected


def test_tags_by_hand() -> None:
    # 7 8 opens, 9 closes. The first 9 closes nothing; the second 7 8 is inside; the last span is never closed.
    action = [9, 7, 8, 1, 7, 8, 2, 9, 3, 7, 8, 4]
    assert spans_of(Tags([7, 8], [9]), [action]) == [(1, 8), (9, 12)]
    assert spans_of(Tags([7, 8], [9], tags=False), [action]) == [(3, 7), (11, 12)]
    assert spans_of(Tags([7, 8], [9], begun=True), [action]) == [(0, 1), (1, 8), (9, 12)]
    assert spans_of(Tags([7, 8], [9]), [[1, 7], [8, 9]]) == []  # a tag does not continue in another action
    assert spans_of(Tags([7], [7]), [[7, 1, 7, 7]]) == [(0, 3), (3, 4)]
    assert spans_of(Tags([7], [9]), []) == spans_of(Tags([7], [9]), [[]]) == []


def batch_of(*draws: Sequence[Sequence[int]]) -> Batch:
    forest = Forest()
    forest.add_group(0, "task")
    for member, actions in enumerate(draws):
        path = forest.start(0, member)
        forest.append(path, [1], kind="prompt")
        for step, action in enumerate(actions):
            if step:
                forest.append(path, [8, 9], kind="observation")
            forest.append(path, list(action), kind="action", logprobs=[-1.0] * len(action))
            forest.step(path)
        forest.finish(path, reward=0.0)
    return forest.freeze()


def test_the_spans_of_a_draw_are_numbered_over_its_actions() -> None:
    batch = batch_of([[8, 3, 9, 8, 4], [5, 8, 9]], [[6]], [[8], [7, 8, 2]])
    numbers = annotate(batch, "thought", Tags([8], [9])).column("thought", "token")
    assert numbers.tolist() == [1, 1, 1, 2, 2, 0, 3, 3, 0, 1, 0, 2, 2]
    inner = annotate(batch, "thought", Tags([8], [9], tags=False)).column("thought", "token")
    assert inner.tolist() == [0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]  # those without a token have no number


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_draw_of_a_batch_with_branches(seed: int) -> None:
    batch = grow(seed)
    tokens, steps, draws = batch.column("token", "token").tolist(), batch.offsets("token"), batch.offsets("step")
    commonest = np.bincount(tokens).argsort()[::-1]
    spans = Tags(commonest[:1], commonest[1:2], begun=seed == 1)
    numbers = annotate(batch, "span", spans).column("span", "token")
    several = 0
    for draw in range(batch.num_draws):
        count = 0
        for step in range(draws[draw], draws[draw + 1]):
            begin, end = steps[step : step + 2].tolist()
            expected = [0] * (end - begin)
            read_spans = read(
                tokens[begin:end], spans.opening.tolist(), spans.closing.tolist(), tags=True, begun=spans.begun
            )
            for first, last in read_spans:
                count += 1
                expected[first:last] = [count] * (last - first)
            assert numbers[begin:end].tolist() == expected
        several += count
    assert several > 3


def words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


PIECES = ["a", "bc", " ", "d e", "f ", "", "ghi"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=8), max_size=4))
def test_a_token_belongs_to_a_span_if_a_letter_of_it_does(actions: list[list[int]]) -> None:
    spans = spans_of(Parsed(words, lambda tokens: "".join(PIECES[token] for token in tokens)), actions)
    place = offset = 0
    for action in actions:
        owner = [number for number, token in enumerate(action) for _ in PIECES[token]]  # the token of each letter
        last_taken = -1
        for begin, end in words("".join(PIECES[token] for token in action)):
            first, last = spans[place]
            inside = [number for number in owner[begin:end] if number > last_taken]
            result = [number - offset for number in range(first, last) if PIECES[action[number - offset]]]
            assert result == list(dict.fromkeys(inside))
            last_taken = max(inside, default=last_taken)
            place += 1
        offset += len(action)
    assert place == len(spans)


def test_a_parser_is_called_once_for_text_that_branches_share() -> None:
    texts = []

    def parser(text: str) -> list[tuple[int, int]]:
        texts.append(text)
        return [(0, 1)]

    batch = batch_of([[65, 66]], [[65, 66]], [[67]])
    numbers = annotate(batch, "item", Parsed(parser, lambda tokens: bytes(tokens).decode())).column("item", "token")
    assert numbers.tolist() == [1, 0, 1, 0, 1]
    assert texts == ["AB", "C"]


def test_items_of_a_written_list_for_rank_grpo() -> None:
    # Two items and the end of the list; and one item, of two lines. A hit at the first place of one of them.
    texts = ["- x\n- y\n.", "- z\n."]
    batch = batch_of(*([list(text.encode())] for text in texts))
    items = Parsed(lambda text: [m.span() for m in re.finditer(r"- .*\n", text)], lambda t: bytes(t).decode())
    batch = annotate(batch, "item", items)
    assert batch.column("item", "token").tolist() == [1] * 4 + [2] * 4 + [0] + [1] * 4 + [0]
    batch = batch.with_columns("draw", score=[1.0, 1.0], **{"hit.0": [1.0, 0.0], "hit.1": [0.0, 0.0]})
    advantages = recipes.RANK_GRPO.advantage(batch).column("advantage", "token")
    half = 0.5 / (np.sqrt(0.5) + 1e-4)  # (1 - 1/2) / (std + eps); at the second place all are equal
    expected = [half] * 4 + [0.0] * 4 + [0.1] + [-half] * 4 + [-0.1]
    np.testing.assert_allclose(advantages, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tags([], [1]), r"opening is \[\]; give the token ids of a tag, at least one"),
        (lambda: Tags([1], [-1]), r"closing is \[-1\]; give the token ids"),
        (lambda: Tags([0.5], [1]), "opening"),
        (lambda: Parsed("x", bytes), "parser is 'x'; give a function"),
        (lambda: Parsed(words, None), "decode is None; give a function"),
    ],
)
def test_impossible_spans(make: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


@pytest.mark.parametrize("answered", [[(1, 0)], [(0, 9)], [(-1, 1)], [(0, 2), (1, 2)]])
def test_a_parser_that_answers_no_spans_of_the_text(answered: list[tuple[int, int]]) -> None:
    spans = Parsed(lambda _: answered, lambda tokens: "x" * len(tokens))
    with pytest.raises(
        InvalidInputError,
        match=r"parser returned the span .* of the text 'xxx', but its next span must lie between [02] and 3",
    ):
        annotate(batch_of([[1, 2, 3]]), "item", spans)


def test_options_that_conflict_with_spans_are_refused() -> None:
    batch = batch_of([[1, 2]])
    for name, value in {"probe": Probe([[1]]), "draws": Where().holds(batch), "level": "step"}.items():
        with pytest.raises(InvalidInputError, match=f"{name} is given together with Spans"):
            annotate(batch, "item", Tags([1], [2]), **{name: value})


def test_a_recipe_reports_missing_spans() -> None:
    batch = batch_of([[1, 2]], [[3]]).with_columns("draw", score=[1.0, 0.0])
    with pytest.raises(
        RecipeError, match=r"needs column 'thought' at level token; .*arl.annotate\(batch, 'thought', sp"
    ):
        recipes.FUN_RL.credit(batch)
    assert ("token", "thought") in [tuple(column) for column in recipes.FUN_RL.model_columns]
