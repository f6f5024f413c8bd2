"""The warm start: its tasks, its output, and a resulting model that can begin to learn."""

import random

import numpy as np
import pytest
import torch

from agentrl_core import engine, env
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.train.calculator_demonstrations import TraceWriter, expression_of
from agentrl_core.train.warm_start import build, warm_start


@pytest.fixture(scope="module")
def gym():
    return env.ReasoningGym(seed=0)


class Watched:
    """The environment, with a record of every requested or played task."""

    def __init__(self, gym):
        self.gym = gym
        self.seen_questions = set()

    def tasks(self, count, *, split="train", start=0):
        assert split == "train"
        tasks = self.gym.tasks(count, split=split, start=start)
        self.seen_questions |= {task.question for task in tasks}
        return tasks

    def reset(self, task, seed):
        self.seen_questions.add(task.question)
        return self.gym.reset(task, seed)


def test_held_out_tasks_are_never_seen(gym):
    watched = Watched(gym)
    warm_start(watched, seed=0, steps=4)
    assert len(watched.seen_questions) > 1000
    assert not watched.seen_questions & {task.question for task in gym.tasks(512, split="held_out")}


def test_expressions_are_read_off_the_questions(gym):
    for task in gym.tasks(60):
        reply = env.Calculator()(expression_of(task))
        assert reply == env.ToolReply(task.payload.entry["answer"], error=False)


@pytest.mark.parametrize("kind", ["correct", "guess", "malformed", "wrong_digit"])
def test_traces_match_their_kind(kind, gym):
    _, tokenizer = build(gym, seed=0)
    chat = engine.Chat(tokenizer)
    writer = TraceWriter(gym, chat, random.Random(0))
    by_prompt = {chat.prompt(task.question).tobytes(): task for task in gym.tasks(4096)}
    solved = 0
    for _ in range(100):
        trace = writer.write({kind: 1.0})
        cuts = np.flatnonzero(np.diff(trace.is_action)) + 1
        prompt, *pieces = np.split(trace.tokens, cuts)
        episode = gym.reset(by_prompt[prompt.tobytes()], 0)
        actions, observations = pieces[::2], pieces[1::2]
        assert len(actions) == (1 if kind == "guess" else 2)
        for action, following in zip(actions, [*observations, None], strict=True):
            assert action[-1] == chat.end_of_turn
            outcome = episode.step(chat.decode(action))
            if following is None:
                assert outcome.terminated
                solved += outcome.success
            else:
                assert following.tolist() == chat.observation(outcome.observation).tolist()
                assert bool(outcome.flags & env.StepFlag.TOOL_ERROR) == (kind == "malformed")
    assert solved == 100 if kind == "correct" else solved < 35


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_few_steps_lower_the_loss(family, gym):
    losses = {}
    model, tokenizer = warm_start(gym, seed=0, steps=24, family=family, progress=losses.__setitem__)
    assert list(losses) == list(range(1, 25))
    assert losses[18] < losses[1] - 1
    assert not model.training
    assert model.config.model_type == family
    assert model.config.vocab_size == len(tokenizer)
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.3e6


def test_the_seed_decides_the_weights_and_no_global_generator_is_touched(gym):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    models = [build(gym, seed=seed)[0] for seed in (0, 0, 1)]
    assert torch.rand(3).equal(expected)
    weights = [model.lm_head.weight for model in models]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


def test_the_tokenizer_splits_digits_and_round_trips_texts(gym, tmp_path):
    _, tokenizer = build(gym, seed=0)
    tokenizer.save_pretrained(tmp_path)
    loaded = type(tokenizer).from_pretrained(tmp_path)
    chat, again = engine.Chat(tokenizer), engine.Chat(loaded)
    for text in ("<call>lcm(7,35)</call>", "<answer>-1024</answer>", "anything else: ü ✓\n"):
        assert chat.decode(chat.action(text)) == text
        assert again.action(text).tolist() == chat.action(text).tolist()
    pieces = tokenizer.convert_ids_to_tokens(chat.action("<call>73+15</call>").tolist())
    assert pieces == ["<call>", "7", "3", "+", "1", "5", "</call>", "<end>"]
    # Fixed texts are short: the length of an episode depends on its numbers.
    assert max(len(chat.prompt(task.question)) for task in gym.tasks(300)) <= 13


def test_wrong_arguments(gym):
    with pytest.raises(InvalidInputError, match="steps is -1"):
        warm_start(gym, seed=0, steps=-1)
    with pytest.raises(InvalidInputError, match="family is 'gpt'"):
        build(gym, seed=0, family="gpt")
    other = env.ReasoningGym(["basic_arithmetic"], held_out=4)
    with pytest.raises(UnsupportedError, match="domain 'basic_arithmetic'"):
        warm_start(other, seed=0, steps=1)


def test_zero_steps_leave_the_random_weights(gym):
    model, _ = warm_start(gym, seed=5, steps=0)
    assert model.lm_head.weight.equal(build(gym, seed=5)[0].lm_head.weight)
