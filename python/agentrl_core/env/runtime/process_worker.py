"""Episodes in processes that this one starts."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import socket
import struct

from agentrl_core.env.base import Environment
from agentrl_core.env.runtime.remote_worker import RemoteWorker, WorkerServer

_LENGTH = struct.Struct("<Q")
_MOST_BYTES = 1 << 18
_SECONDS_TO_DIE = 10.0
"""Seconds to wait for the exit status of a process after its last message; then it is killed."""
_FULL = 77
"""The exit code of a process that exceeded its memory limit."""
_dumps = functools.partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)


class ProcessWorker(RemoteWorker):
    """A worker process; messages with length prefixes are exchanged over a pair of sockets.

    Neither side blocks on the other: this side never writes more than the socket accepts, and always reads.

    Args:
        environment: the environment, sent to the process once.
        memory_bytes: most private memory of the process (RLIMIT_DATA), above which it is ended; None: no limit.
    """

    def __init__(self, environment: Environment, memory_bytes: int | None = None) -> None:
        super().__init__(environment, "process", _dumps)
        self._memory_bytes = memory_bytes
        context = multiprocessing.get_context("spawn")
        self._socket, worker_socket = socket.socketpair()
        self._process = context.Process(
            target=_serve, args=(worker_socket, memory_bytes), name="agentrl-episodes", daemon=True
        )
        self._process.start()
        worker_socket.close()
        self._socket.setblocking(False)  # noqa: FBT003 -- the socket's own method
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._loop.add_reader(self._socket, self._read)

    def deliver(self, messages: list[bytes]) -> None:
        """Queue messages for the process, and write as much as its socket accepts."""
        waiting = bool(self._outgoing)
        for message in messages:
            self._outgoing += _LENGTH.pack(len(message))
            self._outgoing += message
        if not waiting:
            self._write()

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()

    def detach(self) -> None:
        """Close the connection of a stopped process."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._process.join()
        self._socket.close()

    def _write(self) -> None:
        """Write as much as the socket accepts, and the rest when it accepts more."""
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
            received = self._socket.recv(_MOST_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = b""
        if not received:
            self._ended()
            return
        self._incoming += received
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
        code, limit = self._process.exitcode, self._memory_bytes
        if code == _FULL:
            self.died(f"the process of the episode needed more than memory_bytes={limit}")
            return
        # Native code may exit when it gets no memory.
        known = "" if limit is None else f"; memory_bytes={limit}"
        self.died(f"the process of the episode died{'' if code is None else f' (exit code {code}{known})'}")


def _serve(connection: socket.socket, memory_bytes: int | None) -> None:
    """Process calls in sequence, until the connection is closed or the memory limit is reached."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the collecting process
    try:
        _limited(memory_bytes)
        _answer_all(connection, WorkerServer(_dumps, raises=() if memory_bytes is None else (MemoryError,)))
    except MemoryError:
        os._exit(_FULL)  # its other episodes may use the memory, so all of them continue in another process


def _limited(memory_bytes: int | None) -> None:
    if memory_bytes is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _answer_all(connection: socket.socket, hosted: WorkerServer) -> None:
    with connection, connection.makefile("rb") as calls:
        while len(length := calls.read(_LENGTH.size)) == _LENGTH.size:
            answer = hosted.answer(calls.read(_LENGTH.unpack(length)[0]))
            try:
                connection.sendall(_LENGTH.pack(len(answer)) + answer)
            except OSError:
                return
