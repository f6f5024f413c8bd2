"""An environment for a user's own tasks, with tools called in JSON."""

import json

import pytest

from agentrl_core import env
from agentrl_core.env import StepFlag
from agentrl_core.env.tool_environment import schema_of
from agentrl_core.exceptions import InvalidInputError

TASKS = [env.Task(f"sum/{n}", f"What is {n} + 1?", "sums", str(n + 1)) for n in range(4)]


def right(task, answer):
    return float(answer == task.payload)


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def world():
    return env.ToolEnvironment({"train": TASKS[:3], "held_out": TASKS[3:]}, [env.Calculator()], right, system="Add.")


@pytest.fixture
def episode(world):
    return world.reset(world.tasks(1)[0], 0)


def test_the_protocol_is_kept(world):
    actions = [call("calculator", expression="1+1"), "<tool_call>{", call("abacus"), "2"]
    report = env.check(env.ToolEnvironment(TASKS, [env.Calculator()], right), actions=actions)
    assert (report.steps, report.ended) == (12, 3)
    assert "split='held_out'" in report.hints[0]
    assert env.check(world, tasks=1, actions=actions).hints == ()


def test_an_episode(world, episode):
    assert episode.observation == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "What is 0 + 1?"},
    ]
    assert [tool["function"]["name"] for tool in episode.tools] == ["calculator"]
    outcome = episode.step("I need help. " + call("calculator", expression="0+1"))
    assert outcome.observation == [{"role": "tool", "name": "calculator", "content": "1"}]
    assert (outcome.reward, outcome.flags, outcome.facts) == (
        None,
        StepFlag.TOOL_RESULT,
        {"calls": 1.0, "tool": "calculator"},
    )
    outcome = episode.step("<think>It said 1.</think>\n1\n")
    assert (outcome.reward, outcome.success, outcome.terminated, outcome.observation) == (1.0, True, True, None)
    assert outcome.facts == {"points": 1.0, "answer": "1"}
    with pytest.raises(InvalidInputError, match="is over"):
        episode.step("1")
    assert world.reset(TASKS[0], 0).step("2").success is False


def test_several_calls_are_answered_in_their_order(episode):
    calls = [call("calculator", expression="1/2"), call("calculator", expression="2*3"), "<tool_call>{"]
    outcome = episode.step("\n".join(calls))
    assert [message["content"] for message in outcome.observation] == [
        "not an integer",
        "6",
        "a <tool_call> is not closed by </tool_call>",
    ]
    assert outcome.flags == StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR | StepFlag.FORMAT_ERROR
    assert outcome.facts == {"calls": 3.0, "tool": "calculator,calculator"}


@pytest.mark.parametrize(
    ("text", "reply", "flags"),
    [
        ("{", 'a call is JSON: {"name": a tool', StepFlag.FORMAT_ERROR),
        ("[]", "a call is JSON", StepFlag.FORMAT_ERROR),
        ('"calculator"', "a call is JSON", StepFlag.FORMAT_ERROR),
        ('{"arguments": {}}', "a call is JSON", StepFlag.FORMAT_ERROR),
        ('{"name": 1}', "a call is JSON", StepFlag.FORMAT_ERROR),
        ('{"name": "calculator", "arguments": "1+1"}', "a call is JSON", StepFlag.FORMAT_ERROR),
        ("[" * 100_000, "a call is JSON", StepFlag.FORMAT_ERROR),
        ('{"name": "abacus"}', "no tool 'abacus'; there are calculator", StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR),
        (
            '{"name": "calculator"}',
            "takes one argument, the text 'expression'",
            StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR,
        ),
        (
            '{"name": "calculator", "arguments": {"expression": 1}}',
            "takes one argument",
            StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR,
        ),
        (
            '{"name": "calculator", "arguments": {"x": "1", "expression": "1"}}',
            "one argument",
            StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR,
        ),
    ],
)
def test_an_invalid_tool_call_is_reported_in_the_observation(episode, text, reply, flags):
    outcome = episode.step(f"<tool_call>{text}</tool_call>")
    assert reply in outcome.observation[0]["content"]
    assert (outcome.flags, outcome.terminated) == (flags, False)


def test_the_last_turn_truncates():
    world = env.ToolEnvironment(TASKS, [env.Calculator()], right, max_turns=2)
    episode = world.reset(TASKS[0], 0)
    assert not episode.step(call("calculator", expression="1")).truncated
    outcome = episode.step(call("calculator", expression="1"))
    assert (outcome.truncated, outcome.terminated, outcome.reward, outcome.success) == (True, False, 0.0, False)
    assert outcome.observation is None


def test_the_state_is_the_question_and_the_last_replies(world):
    one, two = world.reset(TASKS[0], 0), world.reset(TASKS[0], 1)
    other = world.reset(TASKS[1], 0)
    assert one.state_key() == two.state_key() != other.state_key()
    before = one.state_key()
    one.step(call("calculator", expression="1+1"))
    assert one.state_key() != before
    two.step("Perhaps so. " + call("calculator", expression="2"))
    assert one.state_key() == two.state_key()


class Notebook:
    """A tool with a state, and a schema of its own."""

    name = "note"
    description = "Keeps a text."
    parameters = {"type": "object", "properties": {"text": {"type": "string"}, "page": {"type": "integer"}}}  # noqa: RUF012

    def __init__(self):
        self.notes = []
        self.closed = 0

    def __call__(self, text):
        self.notes.append(json.loads(text))
        return env.ToolReply(f"{len(self.notes)} notes", error=False)

    def close(self):
        self.closed += 1


def test_tools_of_an_episode_remember_and_are_closed_with_it():
    calls = []

    def tools(task, seed):
        calls.append((task.task_id, seed, Notebook()))
        return [calls[-1][2]]

    world = env.ToolEnvironment(TASKS, tools, right)
    actions = [call("note", text="a", page=1), call("note", text="b"), "1"]
    env.check(world, tasks=2, actions=actions)
    assert {notebook.closed for *_, notebook in calls} == {1}
    episode = world.reset(TASKS[0], 7)
    assert calls[-1][:2] == ("sum/0", 7)
    episode.step(actions[0])
    assert calls[-1][2].notes == [{"text": "a", "page": 1}]
    assert episode.tools[0]["function"]["parameters"] == Notebook.parameters


def test_a_shared_tool_that_remembers_is_found_by_check():
    with pytest.raises(InvalidInputError, match="has another observation at step 0"):
        env.check(env.ToolEnvironment(TASKS, [Notebook()], right), actions=[call("note", text="a"), "1"])


def test_shared_tools_are_closed_with_the_environment():
    notebook = Notebook()
    world = env.ToolEnvironment(TASKS, [notebook], right)
    world.reset(TASKS[0], 0).close()
    assert notebook.closed == 0
    world.close()
    assert notebook.closed == 1


def test_tasks_and_splits(world):
    assert world.tasks(5) == [*TASKS[:3], *TASKS[:2]]
    assert world.tasks(2, start=2) == [TASKS[2], TASKS[0]]
    assert world.tasks(1, split="held_out") == [TASKS[3]]
    assert world.task("sum/3") == TASKS[3]
    with pytest.raises(InvalidInputError, match="start is 2, but split 'held_out' has 1 tasks"):
        world.tasks(2, split="held_out")
    with pytest.raises(InvalidInputError, match="'sum/9' is not a task"):
        world.task("sum/9")


def test_a_tool_without_a_declared_argument_takes_an_argument_text():
    class Echo:
        name = "echo"

        def __call__(self, text):
            return env.ToolReply(text, error=False)

    schema = schema_of(Echo())["function"]
    assert schema["parameters"] == {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    episode = env.ToolEnvironment(TASKS, [Echo()], right).reset(TASKS[0], 0)
    assert episode.step(call("echo", text="ä")).observation[0]["content"] == "ä"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": []}, "no training task"),
        ({"tasks": {"held_out": TASKS}}, "no training task"),
        ({"tasks": [TASKS[0], TASKS[0]]}, f"two tasks have the task_id {TASKS[0].task_id!r}"),
        ({"tasks": [env.Task("", "?", "", None)]}, r"tasks\['train'\]\[0\] has task_id ''; give a name"),
        ({"tools": [env.Calculator(), env.Calculator()]}, "two tools are named 'calculator'"),
        ({"max_turns": 0}, "max_turns is 0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        env.ToolEnvironment(**{"tasks": TASKS, "tools": [], "score": right, **arguments})
