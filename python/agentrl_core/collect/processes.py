"""Episodes in processes of our own."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import signal
import socket
import struct

from agentrl_core.collect.hosts import Host, Hosted
from agentrl_core.env.base import Environment

_LENGTH = struct.Struct("<Q")
_MOST_BYTES = 1 << 18
_SECONDS_TO_DIE = 0.1
"""Behind its last word, so that it can be told how it ended."""
_dumps = functools.partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)


class Process(Host):
    """A process of our own, spoken to by messages with their lengths over a pair of sockets.

    Neither side waits for the other to read: here nothing that would block is written, and what comes is always read.
    """

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment, "process", _dumps)
        context = multiprocessing.get_context("spawn")
        self._socket, theirs = socket.socketpair()
        self._process = context.Process(target=_serve, args=(theirs,), name="agentrl-episodes", daemon=True)
        self._process.start()
        theirs.close()
        self._socket.setblocking(False)  # noqa: FBT003 -- the socket's own method
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._loop.add_reader(self._socket, self._read)

    def deliver(self, messages: list[bytes]) -> None:
        """See `Host`."""
        waiting = bool(self._outgoing)
        for message in messages:
            self._outgoing += _LENGTH.pack(len(message))
            self._outgoing += message
        if not waiting:
            self._write()

    def stop(self) -> None:
        """See `Host`."""
        self._process.kill()

    def detach(self) -> None:
        """See `Host`."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._process.join()
        self._socket.close()

    def _write(self) -> None:
        """Write as much as there is room for; the rest when there is more."""
        try:
            del self._outgoing[: self._socket.send(self._outgoing)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._ended()
            return
        if self._outgoing:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            read = self._socket.recv(_MOST_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            read = b""
        if not read:
            self._ended()
            return
        self._incoming += read
        begin, answers = 0, []
        while len(self._incoming) >= begin + _LENGTH.size:
            end = begin + _LENGTH.size + _LENGTH.unpack_from(self._incoming, begin)[0]
            if end > len(self._incoming):
                break
            answers.append(bytes(self._incoming[begin + _LENGTH.size : end]))
            begin = end
        del self._incoming[:begin]
        if answers:
            self.answered(answers)

    def _ended(self) -> None:
        self._process.join(_SECONDS_TO_DIE)
        code = self._process.exitcode
        self.died(f"the process of the episode died{'' if code is None else f' (exit code {code})'}")


def _serve(connection: socket.socket) -> None:
    """Answer calls, one after the other, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the one who collects
    hosted = Hosted(_dumps)
    with connection, connection.makefile("rb") as calls:
        while len(length := calls.read(_LENGTH.size)) == _LENGTH.size:
            answer = hosted.answer(calls.read(_LENGTH.unpack(length)[0]))
            try:
                connection.sendall(_LENGTH.pack(len(answer)) + answer)
            except OSError:
                return
