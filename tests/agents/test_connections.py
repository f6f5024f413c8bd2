"""Connections that an endpoint closes, and requests of web pages, which it rejects."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import threading
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from tool_agents import endpoint

from agentrl_core.agents import connections
from agentrl_core.agents import routes as doors
from agentrl_core.agents.in_process_endpoint import InProcessEndpoint

HANG = 120.0
"""Timeout of a test, in seconds."""
BODY = json.dumps({"messages": [{"role": "user", "content": "?"}]}).encode()
HEAD = b"POST /s/a/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture
def url():
    with endpoint(lambda _: "yes").running() as served:
        yield served


def dial(url):
    place = urlsplit(url)
    return socket.create_connection((place.hostname, place.port), timeout=HANG)


def rest(connection):
    """Return all data until the other side closes."""
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def reply_of(connection):
    """Return the reply to one request."""
    file = connection.makefile("rb")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += file.readline()
    length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length"))
    return head + file.read(length)


@pytest.fixture
def impatient(monkeypatch):
    """Set timeouts so short that slow clients exceed them at once, whatever the rest of a test takes."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(doors, "SILENT_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sent", [b"", b"POST /s/a/v1", HEAD], ids=["nothing", "a line", "a head"])
def test_a_connection_whose_head_is_not_whole_in_time_is_closed(url, sent) -> None:
    with dial(url) as connection:
        connection.sendall(sent)
        assert rest(connection) == b""


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("head", [b"Content-Length: 1000\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"])
def test_a_body_that_stops_is_answered_with_408_and_closed(url, head) -> None:
    with dial(url) as connection:
        connection.sendall(HEAD + head)
        reply = rest(connection)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"the body is incomplete after 1 bytes" in reply


def test_a_body_that_drips_has_to_end(monkeypatch, url) -> None:
    monkeypatch.setattr(doors, "BODY_SECONDS", 0.3)
    with dial(url) as connection:
        connection.sendall(HEAD + b"Content-Length: 100000000\r\n\r\n")
        stop = threading.Event()

        def drip():
            while not stop.wait(0.01):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert connection.recv(12) == b"HTTP/1.1 408"
        finally:
            stop.set()
            thread.join()


def test_a_connection_with_a_pending_response_is_not_closed(monkeypatch) -> None:
    # The answer comes after another connection was closed for its silence, which takes the whole allowed time.
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    closed = threading.Event()

    served = endpoint(lambda _: "yes")
    generated = served.upstream._generated

    async def later(*arguments, **options):
        assert await asyncio.to_thread(closed.wait, HANG)
        return await generated(*arguments, **options)

    monkeypatch.setattr(served.upstream, "_generated", later)
    with served.running() as url, dial(url) as asks, dial(url) as idle:
        asks.sendall(WHOLE)
        waiter = threading.Thread(target=lambda: (rest(idle), closed.set()))
        waiter.start()
        assert b'"content":"yes"' in reply_of(asks)
        waiter.join()


def test_a_kept_alive_connection_with_an_incomplete_request_is_closed(monkeypatch, url) -> None:
    with dial(url) as connection:
        for _ in range(2):
            connection.sendall(WHOLE)
            assert b'"content":"yes"' in reply_of(connection)
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
        connection.sendall(WHOLE[:40])
        assert rest(connection) == b""


def test_an_idle_connection_is_closed(monkeypatch) -> None:
    monkeypatch.setitem(connections.OPTIONS, "timeout_keep_alive", 0.2)
    with endpoint(lambda _: "yes").running() as served, dial(served) as connection:
        connection.sendall(WHOLE)
        assert b'"content":"yes"' in rest(connection)


def test_connections_have_a_number(monkeypatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(connections, "HEAD_SECONDS", HANG)
    with endpoint(lambda _: "yes").running() as served, ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(dial(served))
            connection.sendall(WHOLE)
            assert b" 200 OK" in reply_of(connection)
        with dial(served) as more:
            assert rest(more).startswith(b"HTTP/1.1 503 ")
        stack.close()
        reply = b""
        while b" 200 OK" not in reply:  # the server notices the end of the others later
            with dial(served) as again:
                again.sendall(WHOLE)
                reply = again.recv(1 << 16)


def test_a_process_with_few_files_takes_few_connections(monkeypatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert connections.most_connections() == 448
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connections.most_connections() == connections.MOST_CONNECTIONS


@pytest.mark.parametrize(
    "headers",
    [b"X-Long: " + b"x" * 1_000_000 + b"\r\n", b"X-Many: x\r\n" * 100_000, b"X-Many: x\r\n" * 200],
    ids=["long", "many and long", "many"],
)
def test_headers_have_a_limit(url, headers) -> None:
    with dial(url) as connection:
        try:
            connection.sendall(HEAD + headers + b"Content-Length: 2\r\n\r\n{}")
            reply = rest(connection) if len(headers) > 100_000 else reply_of(connection)
        except ConnectionError:
            reply = b""  # it was rejected while it was being sent
    assert reply == b"" or reply.split()[1] in (b"400", b"431")
    assert httpx.get(f"{url}/health").json()["sessions"] == 0


PAGES = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Origin": "http://127.0.0.1:1"},
    {"Host": "evil.example:8800"},
    {"Host": "evil.example", "Origin": "http://evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "["},
    {"Host": ""},
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "multipart/form-data; boundary=x"},
]


@pytest.mark.parametrize("headers", PAGES)
def test_a_web_page_cannot_talk_to_an_endpoint_without_a_key(headers) -> None:
    served = endpoint(lambda _: "yes")
    served.open("a")
    with served.running() as url, httpx.Client(base_url=url) as page:
        replies = [
            page.post(path, content=BODY, headers={"Content-Type": "application/json"} | headers)
            for path in ("/sessions/a/close", "/iterations", "/weights", "/sessions", "/s/a/v1/chat/completions")
        ]
        replies.append(page.post("/s/a/v1/messages", content=BODY, headers=headers))
        replies += [page.get(path, headers=headers) for path in ("/sessions/a/traces", "/health", "/v1/models")]
    assert {reply.status_code for reply in replies} <= {403, 415}
    assert all(reply.json()["error"]["message"] for reply in replies)
    assert replies[5].json()["type"] == "error", "in the dialect of Anthropic"
    assert served._recorder.sessions["a"].closed is None
    assert served._recorder.sessions["a"].turns == []


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]"])
def test_programs_of_this_machine_can(name) -> None:
    with endpoint(lambda _: "yes").running() as url:
        port = urlsplit(url).port
        for headers in ({}, {"Origin": f"http://{name}:{port}"}, {"Content-Type": "application/json; charset=utf-8"}):
            all_headers = {"Host": f"{name}:{port}"} | headers
            assert httpx.post(f"{url}/s/a/v1/chat/completions", content=BODY, headers=all_headers).status_code == 200


def test_with_a_key_no_page_has_to_be_looked_for() -> None:
    served = endpoint(lambda _: "yes", api_key="secret")
    with served.running() as url:
        headers = {"Host": "proxy.example", "Content-Type": "text/plain", "Authorization": "Bearer secret"}
        assert httpx.post(f"{url}/s/a/v1/chat/completions", content=BODY, headers=headers).status_code == 200
        headers["Authorization"] = "Bearer guess"
        assert httpx.post(f"{url}/s/a/v1/chat/completions", content=BODY, headers=headers).status_code == 401


@pytest.mark.usefixtures("impatient")
def test_inside_a_loop_connections_have_the_same_limits() -> None:
    loopback = InProcessEndpoint(None)
    try:
        _, url, _, _ = loopback.open(lambda _: None)
        with dial(url) as connection:
            connection.sendall(HEAD)
            assert rest(connection) == b""
    finally:
        loopback.close()


def test_a_client_that_hangs_up_in_its_body_leaves_no_session(url, capfd) -> None:
    with dial(url) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
    assert httpx.get(f"{url}/health").json()["sessions"] == 0
    assert "Traceback" not in capfd.readouterr().err
