"""A run stores the tokenizer of its engine."""

from __future__ import annotations

import pytest

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start
from agentrl_core.collect.run_state import save_tokenizer
from agentrl_core.exceptions import StoreError
from agentrl_core.integrations.polars.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def script():
    _, tokenizer = warm_start.build(env.ReasoningGym(["lcm"], seed=0, held_out=0), seed=0)
    return engine.Scripted(tokenizer, lambda _: "<answer>12</answer>")


def test_the_texts_of_a_run_are_read_by_the_run_alone(script, tmp_path) -> None:
    world = env.ReasoningGym(["lcm"], seed=0, held_out=0)
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(script, world, recipes.GRPO, store=store)
        collect.end_iteration(collect(tasks=2, group_size=2), {})
        run = arl.scan(store)
        vocabulary = Vocabulary.find(tmp_path)
        assert vocabulary is not None
        tokens = run.trajectories.agentrl.paths(run).collect()["tokens"]
    assert [text.endswith("<answer>12</answer><end>") for text in vocabulary.texts(tokens)] == [True] * len(tokens)
    assert len(tokens) > 0


def test_it_is_written_once_and_not_beside_that_of_training(script, tmp_path) -> None:
    with arl.Store.open(tmp_path / "one") as store:
        save_tokenizer(store, [script])
        file = tmp_path / "one" / "tokenizer" / "tokenizer.json"
        first = file.stat().st_mtime_ns
        save_tokenizer(store, [script])
        assert file.stat().st_mtime_ns == first
        assert [path.name for path in file.parent.iterdir()] == ["tokenizer.json"]
    with arl.Store.open(tmp_path / "two") as store:
        (tmp_path / "two" / "start").mkdir()
        (tmp_path / "two" / "start" / "tokenizer.json").write_text("{}")
        save_tokenizer(store, [script])
        assert not (tmp_path / "two" / "tokenizer").exists()
    with arl.Store.open(tmp_path / "three") as store:
        (tmp_path / "three" / "tokenizer").write_text("a file where the folder should be")
        with pytest.raises(StoreError, match="cannot be written"):
            save_tokenizer(store, [script])
