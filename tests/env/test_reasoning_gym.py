"""The environment on the real reasoning-gym."""

import pickle
import re

import pytest

from agentrl_core import env
from agentrl_core.env import StepFlag
from agentrl_core.exceptions import InvalidInputError


@pytest.fixture(scope="module")
def gym():
    return env.ReasoningGym(seed=3, held_out=96)


def answer_of(task):
    return task.payload.entry["answer"]


def start(gym, domain="chain_sum"):
    task = next(task for task in gym.tasks(10) if task.domain == domain)
    return task, gym.reset(task, seed=0)


def test_tasks_are_the_same_in_every_call_and_of_each_family_in_turn(gym):
    tasks = gym.tasks(30)
    assert [task.domain for task in tasks[:4]] == ["chain_sum", "products", "lcm", "chain_sum"]
    assert gym.tasks(10, start=20) == tasks[20:]
    assert env.ReasoningGym(seed=3, held_out=96).tasks(30) == tasks
    assert env.ReasoningGym(seed=4, held_out=96).tasks(30) != tasks
    assert pickle.loads(pickle.dumps(tasks)) == tasks


@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_questions_are_distinct_and_in_no_training_task(seed):
    gym = env.ReasoningGym(seed=seed)
    train, held_out = gym.tasks(6000), gym.tasks(512, split="held_out")
    questions = {task.question for task in held_out}
    assert len(questions) == 512
    trained = {task.question for task in train}
    assert not questions & trained
    assert 4000 < len(trained) < 6000, "training questions repeat as they are drawn"
    ids = {task.task_id for task in train}
    assert len(ids) == len(trained), "a repeated question is the same task"
    assert len(ids | {task.task_id for task in held_out}) == len(trained) + 512


def test_neighbouring_seeds_share_no_range_of_reasoning_gyms_seeds():
    # Item i of seed s is item i - 1 of seed s + 1 in reasoning-gym: here a later start must not repeat those.
    first, second = (env.ReasoningGym(["lcm"], seed=seed, held_out=8) for seed in (0, 1))
    one = [task.question for task in first.tasks(50)]
    two = [task.question for task in second.tasks(50)]
    assert one[1:] != two[:-1]
    assert len(set(one) & set(two)) < 10


def test_an_episode_with_a_tool_call(gym):
    task, episode = start(gym)
    assert episode.observation == task.question
    before = episode.state_key()
    outcome = episode.step("I add them. <call>73+15</call>")
    assert (outcome.observation, outcome.reward, outcome.flags) == ("<result>88</result>", None, StepFlag.TOOL_RESULT)
    assert (outcome.terminated, outcome.truncated, outcome.success) == (False, False, None)
    assert episode.state_key() != before
    assert task.question.encode() in episode.state_key()
    outcome = episode.step(f"<answer> {answer_of(task)} </answer>\n")
    assert (outcome.reward, outcome.success, outcome.terminated, outcome.observation) == (1.0, True, True, None)
    assert outcome.info == {"answer": answer_of(task), "score": 1.0}
    with pytest.raises(InvalidInputError, match="is over"):
        episode.step("<answer>1</answer>")


def test_partial_credit_is_not_a_success(gym):
    task, episode = start(gym)
    outcome = episode.step(f"<answer>{answer_of(task)} or so</answer>")
    assert 0 < outcome.info["score"] < 1
    assert (outcome.reward, outcome.success, outcome.terminated) == (0.0, False, True)


@pytest.mark.parametrize("domain", ["chain_sum", "products", "lcm"])
def test_a_calculator_result_is_scored_as_correct(gym, domain):
    task, episode = start(gym, domain)
    numbers = task.question.rpartition(": ")[2].removesuffix(" =").partition(". Give")[0]
    reply = episode.step(f"<call>{f'lcm({numbers})' if domain == 'lcm' else numbers}</call>").observation
    answer = reply.removeprefix("<result>").removesuffix("</result>")
    assert episode.step(f"<answer>{answer}</answer>").reward == 1.0


@pytest.mark.parametrize(
    ("action", "observation", "flags"),
    [
        ("<call>1+</call>", "<result>syntax error</result>", StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR),
        ("<call>" + "9" * 41 + "</call>", "<result>too long</result>", StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR),
        ("", "<result>no call or answer</result>", StepFlag.FORMAT_ERROR),
        ("<call>1+1", "<result>no call or answer</result>", StepFlag.FORMAT_ERROR),
        ("<answer>1</call>", "<result>no call or answer</result>", StepFlag.FORMAT_ERROR),
        ("<call>1+1</call> and more", "<result>no call or answer</result>", StepFlag.FORMAT_ERROR),
        ("<call><call>1+1</call>", "<result>2</result>", StepFlag.TOOL_RESULT),
    ],
)
def test_actions_that_do_not_parse_get_an_error_observation(gym, action, observation, flags):
    _, episode = start(gym)
    outcome = episode.step(action)
    assert (outcome.observation, outcome.flags, outcome.reward) == (observation, flags, None)
    assert not outcome.terminated
    assert not outcome.truncated


def test_the_last_turn_truncates(gym):
    _, episode = start(gym)
    for _ in range(2):
        assert not episode.step("<call>1+1</call>").truncated
    outcome = episode.step("<call>1+1</call>")
    assert (outcome.truncated, outcome.terminated, outcome.observation) == (True, False, None)
    assert (outcome.reward, outcome.success) == (0.0, False)
    with pytest.raises(InvalidInputError, match="is over"):
        episode.step("<call>1+1</call>")


def test_replayed_actions_give_equal_episodes(gym):
    task, first = start(gym)
    second = gym.reset(task, seed=0)
    for action in ("<call>2*3</call>", "nothing", f"<answer>{answer_of(task)}</answer>"):
        assert first.state_key() == second.state_key()
        assert first.step(action) == second.step(action)


def test_a_call_names_its_tool_where_there_are_several():
    class Echo:
        name = "echo"

        def __call__(self, text):
            return env.ToolReply(text, error=False)

    gym = env.ReasoningGym(["lcm"], tools=[env.Calculator(), Echo()], held_out=4)
    _, episode = start(gym, "lcm")
    assert episode.step("<call>calculator 1 + 1</call>").observation == "<result>2</result>"
    assert episode.step("<call>echo 1 + 1</call>").observation == "<result>1 + 1</result>"
    _, episode = start(gym, "lcm")
    assert episode.step("<call>1 + 1</call>").observation == "<result>no such tool</result>"
    _, episode = start(env.ReasoningGym(["lcm"], tools=[], held_out=4), "lcm")
    assert episode.step("<call>1+1</call>").flags == StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR


def test_families_take_settings():
    gym = env.ReasoningGym({"chain_sum": {"min_terms": 5, "max_terms": 5}}, held_out=4)
    assert all(task.question.count("+") + task.question.count(" - ") == 4 for task in gym.tasks(20))


def test_a_family_with_too_few_questions_is_reported():
    few = {"lcm": {"min_value": 2, "max_value": 4}}  # nine questions
    gym = env.ReasoningGym(few, held_out=4)
    assert len({task.question for task in gym.tasks(200)}) == 5
    with pytest.raises(InvalidInputError, match="lcm has only 9 questions for split 'held_out'"):
        env.ReasoningGym(few, held_out=10)
    with pytest.raises(InvalidInputError, match="lcm has only 0 questions for split 'train'"):
        env.ReasoningGym(few, held_out=9).tasks(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"families": []}, "at least one name"),
        ({"families": "lcm"}, "at least one name"),
        ({"families": ["lcm", "lcm"]}, "has 'lcm' twice; give each name once"),
        ({"families": ["chain_sums"]}, "there is no family 'chain_sums'; did you mean chain_sum"),
        ({"families": ["qqq"]}, "there is no family 'qqq'; use one of: .*, chain_sum, .*, lcm, "),
        ({"families": {"lcm": {"min_value": -1}}}, "min_value"),
        ({"families": {"lcm": {"smallest": 1}}}, "smallest"),
        ({"seed": -1}, "seed is -1"),
        ({"max_turns": 0}, "max_turns is 0"),
        ({"held_out": -1}, "held_out is -1"),
        ({"tools": [env.Calculator(), env.Calculator()]}, "two tools are named 'calculator'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        env.ReasoningGym(**arguments)


def test_wrong_calls(gym):
    with pytest.raises(InvalidInputError, match="count is -1"):
        gym.tasks(-1)
    with pytest.raises(InvalidInputError, match="split is 'test'"):
        gym.tasks(1, split="test")
    with pytest.raises(InvalidInputError, match="start is 97, but split 'held_out' has 96 tasks"):
        gym.tasks(97, split="held_out")
    with pytest.raises(InvalidInputError, match="'other/1' is not of this ReasoningGym"):
        gym.reset(env.Task("other/1", "?", "other", None), seed=0)


def test_an_answer_that_the_scorer_cannot_parse_is_wrong():
    world = env.ReasoningGym(["prime_factorization"], seed=0, held_out=0)
    outcome = world.reset(world.tasks(1)[0], seed=0).step("<answer>abc</answer>")
    assert (outcome.reward, outcome.success, outcome.terminated) == (0.0, False, True)


def test_facts_of_an_episode(gym):
    task, episode = start(gym)
    failed = episode.step("<call>1 +</call>")
    assert failed.facts == {"tool": "calculator", "executed": 0.0}
    assert episode.step("<call>1 + 1</call>").facts == {"tool": "calculator", "executed": 1.0}
    answered = episode.step(f"<answer>{answer_of(task)}</answer>").facts
    assert {name: answered[name] for name in answered if name not in ("answer_cluster", "points")} == {
        "answer": answer_of(task),
        "answer_parsed": 1.0,
        "tool_calls": 2.0,
        "reward.format": 1.0,
        "reward.correct": 1.0,
        "reward.answer": 1.0,
    }
    clusters = []
    for answer in (answer_of(task), "0.123", "0.123"):
        facts = gym.reset(task, seed=0).step(f"<answer>{answer}</answer>").facts
        clusters.append(facts["answer_cluster"])
    assert clusters[0] == answered["answer_cluster"]
    assert clusters[1] == clusters[2] != clusters[0]
    # Two malformed actions, then a third that is a call: one of three; cut off without an answer.
    episode = gym.reset(task, seed=0)
    assert [episode.step("hm").facts for _ in range(2)] == [{"executed": 0.0}] * 2
    last = episode.step("<call>2</call>").facts
    assert (last["reward.format"], last["tool_calls"], last["answer_parsed"], last["reward.correct"]) == (
        pytest.approx(1 / 3),
        1.0,
        0.0,
        0.0,
    )


@pytest.mark.parametrize("family", ["jugs", "futoshiki"])
def test_right_answers_with_angle_brackets_can_be_given(family):
    world = env.ReasoningGym([family], held_out=0)
    answers = [answer_of(task) for task in world.tasks(6)]
    assert any(set(answer) & set("<>") for answer in answers)
    for task, answer in zip(world.tasks(6), answers, strict=True):
        for text in ("", "is <answer> a tag? "):
            outcome = world.reset(task, 0).step(f"{text}<answer>{answer}</answer>\n")
            assert (outcome.success, outcome.info["answer"]) == (True, answer.strip())


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("<answer>1</answer><answer>a < b > c</answer>", "a < b > c"),
        ("<answer><b>4</b></answer>", "<b>4</b>"),
        ("<call>1+1</call><answer>2</answer>", "2"),
        ("<answer>1</answer></answer>", None),
        ("1</answer>", None),
        ("</answer>", None),
    ],
)
def test_an_answer_is_read_from_the_last_tags(gym, action, answer):
    outcome = start(gym)[1].step(action)
    assert (outcome.info or {}).get("answer") == answer
    assert bool(outcome.flags & StepFlag.FORMAT_ERROR) == (answer is None)


def test_calls_may_hold_angle_brackets(gym):
    outcome = start(gym)[1].step("<call>1 < 2</call>")
    assert outcome.flags & StepFlag.TOOL_ERROR
    assert not outcome.flags & StepFlag.FORMAT_ERROR


def test_instructions_describe_forms_that_are_scored():
    world = env.ReasoningGym(["chain_sum"], held_out=0, instructions=True)
    task = world.tasks(1)[0]
    episode = world.reset(task, 0)
    system, user = episode.observation
    assert user == {"role": "user", "content": task.question}
    assert system["role"] == "system"
    # The environment accepts the examples.
    call = re.search(r"<call>73\+15</call>", system["content"])
    answer = re.search(r"<answer>88</answer>\Z", system["content"])
    assert episode.step(call[0]).observation == "<result>88</result>"
    assert "<result>88</result>" in system["content"]
    assert episode.step(answer[0]).terminated


def test_instructions_name_the_tools_there_are():
    class Named(env.Calculator):
        name = "sums"

    several = env.ReasoningGym(["lcm"], [env.Calculator(), Named()], held_out=0, instructions=True).instructions
    assert "calculator, sums" in several
    assert "<call>calculator 73+15</call>" in several
    none = env.ReasoningGym(["lcm"], [], held_out=0, instructions=True).instructions
    assert "<call>" not in none
    assert "<answer>88</answer>" in none
    assert env.ReasoningGym(["lcm"], held_out=0, instructions="Be brief.").instructions == "Be brief."
    assert env.ReasoningGym(["lcm"], held_out=0).instructions == ""


def test_unlearnable_families_require_allow_unlearnable():
    with pytest.raises(InvalidInputError, match="family 'game_of_life_halting' cannot be learnt from"):
        env.ReasoningGym(["lcm", "game_of_life_halting"], held_out=0)
    with pytest.raises(InvalidInputError, match="give allow_unlearnable=True"):
        env.ReasoningGym({"game_of_life_halting": {}}, held_out=0)
    world = env.ReasoningGym(["game_of_life_halting"], held_out=0, allow_unlearnable=True)
    assert world.reset(world.tasks(1)[0], 0).step("<answer>no idea</answer>").success
