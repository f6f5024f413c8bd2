"""Search over a corpus with the real bm25s, compared with a naive BM25."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import env
from agentrl_core.exceptions import InvalidInputError

LAKES = ["The lake is frozen.", "The taxi waits at the lake.", "A deck of cards.", "lake lake", "lake lake"]


def naive(documents: list[str], query: str) -> list[float]:
    """Compute BM25 with k1 = 1.5, b = 0.75 and Lucene's idf."""
    split = [document.split() for document in documents]
    mean = sum(map(len, split)) / len(split)
    scores = [0.0] * len(split)
    for word in query.split():
        having = sum(word in each for each in split)
        idf = math.log(1 + (len(split) - having + 0.5) / (having + 0.5))
        for number, each in enumerate(split):
            count = each.count(word)
            scores[number] += idf * count / (count + 1.5 * (0.25 + 0.75 * len(each) / mean))
    return scores


def test_the_best_come_first_and_equal_ones_in_their_order():
    search = env.Search(LAKES, top=3)
    assert search("lake").text == "[1] lake lake\n[2] lake lake\n[3] The lake is frozen."
    assert search("Who WAITS?") == env.ToolReply("[1] The taxi waits at the lake.", error=False)


@pytest.mark.parametrize("query", ["", "the", "zebra", "💥", "?!"])
def test_a_query_without_results_is_not_an_error(query):
    assert env.Search(LAKES)(query) == env.ToolReply("nothing found", error=False)


WORDS = st.lists(st.sampled_from(["lake", "taxi", "card", "ice", "goal"]), min_size=1, max_size=6).map(" ".join)


@given(st.lists(WORDS, min_size=1, max_size=8), WORDS)
def test_scores_are_those_of_the_formula(documents, query):
    search = env.Search(documents, top=len(documents))
    texts = [line.partition("] ")[2] for line in search(query).text.splitlines()]
    scores = naive(documents, query)
    if texts == [""]:
        assert max(scores) == 0
        return
    expected = sorted((score for score in scores if score > 0), reverse=True)
    of_text = dict(zip(documents, scores, strict=True))
    assert [of_text[text] for text in texts] == pytest.approx(expected, rel=1e-4)


def test_documents_are_cut():
    assert env.Search(["lake " * 100], max_characters=9)("lake").text == "[1] lake lake"


def test_it_pickles():
    search = pickle.loads(pickle.dumps(env.Search(LAKES, top=1)))
    assert search("taxi").text == "[1] The taxi waits at the lake."


def test_reasoning_gym_runs_inline_with_it():
    tools = [env.Calculator(), env.Search(LAKES, top=1)]
    world = env.ReasoningGym(["lcm"], tools, held_out=4)
    assert world.runs == "inline"
    episode = world.reset(world.tasks(1)[0], seed=0)
    outcome = episode.step("<call>search taxi</call>")
    assert outcome.observation == "<result>[1] The taxi waits at the lake.</result>"
    assert outcome.facts == {"tool": "search", "executed": 1.0}


@pytest.mark.parametrize(
    ("documents", "arguments", "message"),
    [
        ([], {}, "at least one text"),
        ("lake", {}, "at least one text"),
        ([1], {}, r"documents\[0\] is 1; give a text"),
        (["the"], {}, "no document has a word"),
        (LAKES, {"top": 0}, "top is 0"),
        (LAKES, {"max_characters": 0}, "max_characters is 0"),
    ],
)
def test_wrong_arguments(documents, arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        env.Search(documents, **arguments)
