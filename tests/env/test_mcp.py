"""Tools of a real MCP server, written with the official SDK and started as a process."""

import json
import pickle
import sys
import threading
import time

import pytest

from agentrl_core import env
from agentrl_core.exceptions import AgentRLError, InvalidInputError

mcp_server = pytest.importorskip("mcp") and pytest.importorskip("mcp_server")
COMMAND = [sys.executable, mcp_server.__file__]


@pytest.fixture
def server():
    server = env.MCP(COMMAND, environment={"NOTEBOOK": "the test"}, seconds=600)
    yield server
    server.close()
    server.close()


def call(tool, **arguments):
    return tool(json.dumps(arguments))


def test_tools_are_listed_with_their_schemas_and_called(server):
    tools = {tool.name: tool for tool in server.tools}
    assert list(tools) == ["add", "divide", "note", "wait", "leave", "long"]
    add = tools["add"]
    assert add.description == "Add two integers."
    assert add.parameters["required"] == ["first"]
    assert add.parameters["properties"]["second"]["default"] == 1
    assert call(add, first=1, second=2) == env.ToolReply("3", error=False)
    assert call(add, first=1).text == "2"
    assert call(tools["note"], text="a").text == "1 kept by the test"
    assert call(tools["note"], text="b").text == "2 kept by the test"
    assert len(call(tools["long"]).text) == 10_000


def test_errors_of_an_mcp_server_become_tool_replies(server):
    tools = {tool.name: tool for tool in server.tools}
    for reply in (call(tools["add"]), call(tools["add"], first="x"), call(tools["divide"], first=1, second=0)):
        assert reply.error
        assert reply.text
    for text in ("", "1", "[]", "{"):
        assert tools["add"](text) == env.ToolReply("add takes a JSON object of arguments", error=True)
    assert call(tools["add"], first=1).text == "2"


def test_a_call_that_takes_too_long_is_a_reply():
    server = env.MCP(COMMAND, seconds=600)
    tools = {tool.name: tool for tool in server.tools}
    server._connection._seconds = 0.5
    before = time.monotonic()
    reply = call(tools["wait"], seconds=300)
    assert reply.error
    assert "timed out" in reply.text
    assert time.monotonic() - before < 300
    server.close()


def test_a_server_that_ends_is_an_error_with_its_last_words(server):
    tools = {tool.name: tool for tool in server.tools}
    with pytest.raises(AgentRLError, match=r"ended during a call of leave: .*the server leaves"):
        call(tools["leave"])
    with pytest.raises(AgentRLError, match="has ended"):
        call(tools["add"], first=1)
    server.close()
    assert call(tools["add"], first=1).text == "2", "after close it starts again"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["/no/such/program"], "does not start: FileNotFoundError"),
        ([sys.executable, "-c", "import sys; sys.exit('no good')"], "does not start: .*: no good"),
        ([sys.executable, "-c", "import time; time.sleep(100)"], "no answer within 1 seconds"),
    ],
)
def test_a_server_that_does_not_start_is_reported(command, message):
    server = env.MCP(command, seconds=1 if "time" in command[-1] else 600)
    with pytest.raises(AgentRLError, match=message):
        server.tools  # noqa: B018 -- starts it


def test_calls_come_from_many_threads_and_from_a_copy(server):
    add = server.tools[0]
    sums = {}

    def count(number):
        sums[number] = int(call(add, first=number, second=number).text)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {number: 2 * number for number in range(8)}
    copy = pickle.loads(pickle.dumps(server))
    assert call(copy.tools[2], text="a").text == "1 kept by the test"
    copy.close()


def test_an_environment_with_the_tools_of_a_server(server):
    tasks = [env.Task(f"sum/{n}", f"What is {n} + {n}?", "sums", str(2 * n)) for n in range(4)]
    tools = [tool for tool in server.tools if tool.name in ("add", "divide")]
    world = env.ToolEnvironment(tasks, [*tools, env.Calculator()], lambda task, answer: float(answer == task.payload))
    action = '<tool_call>{"name": "add", "arguments": {"first": 1, "second": 2}}</tool_call>'
    episode = world.reset(tasks[1], 0)
    assert [tool["function"]["name"] for tool in episode.tools] == ["add", "divide", "calculator"]
    assert episode.step(action).observation == [{"role": "tool", "name": "add", "content": "3"}]
    assert episode.step("2").success
    assert env.check(world, actions=[action, "2"], tasks=2).ended == 2
    world.close()
    assert server._connection is None


def test_a_server_for_each_episode_that_remembers():
    servers = []

    def tools(_task, _seed):
        servers.append(env.MCP(COMMAND, seconds=600))
        return [tool for tool in servers[-1].tools if tool.name == "note"]

    world = env.ToolEnvironment([env.Task("t", "?", "d", None)], tools, lambda _task, _answer: 1.0)
    action = '<tool_call>{"name": "note", "arguments": {"text": "a"}}</tool_call>'
    for _ in range(2):
        episode = world.reset(world.tasks(1)[0], 0)
        assert episode.step(action).observation[0]["content"] == "1 kept by nobody"
        episode.close()
    assert [server._connection for server in servers] == [None, None]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ([], {}, "command is"),
        ("python", {}, "command is 'python'"),
        (["x"], {"seconds": 0}, "seconds is 0"),
        (["x"], {"max_characters": 0}, "max_characters is 0"),
    ],
)
def test_wrong_arguments(command, arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        env.MCP(command, **arguments)
