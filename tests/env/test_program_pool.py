"""Programs that serve one episode after another."""

from __future__ import annotations

import gc
import pickle
import threading

from agentrl_core.env.program_pool import ProgramPool

ended: list[Counter] = []


class Counter:
    """A program that counts how often it was ended."""

    def __init__(self) -> None:
        self.alive, self.ends = True, 0

    def end(self) -> None:
        self.alive, self.ends = False, self.ends + 1
        ended.append(self)


def is_alive(program: Counter) -> bool:
    return program.alive


def pool() -> ProgramPool[Counter]:
    ended.clear()
    return ProgramPool(Counter, Counter.end, is_alive)


def test_each_episode_has_one_alone_and_later_ones_reuse_it() -> None:
    programs = pool()
    one, two = programs.take(), programs.take()
    assert one[0] is not two[0]
    assert not one[1]
    assert not two[1]
    programs.give_back(one[0])
    again, reused = programs.take()
    assert again is one[0]
    assert reused
    assert len(programs) == 2


def test_one_that_failed_is_ended_and_replaced() -> None:
    programs = pool()
    first, _ = programs.take()
    first.alive = False
    programs.give_back(first)
    assert (ended, len(programs)) == ([first], 0)
    assert programs.take()[0] is not first


def test_a_closed_pool_ends_all_programs_and_keeps_none_given_back() -> None:
    programs = pool()
    idle, running = programs.take()[0], programs.take()[0]
    programs.give_back(idle)
    programs.close()
    programs.close()
    assert [idle.ends, running.ends] == [1, 1]
    running.alive = True  # it would look usable
    programs.give_back(running)
    later, reused = programs.take()
    assert later not in (idle, running)
    assert not reused
    programs.close()
    assert later.ends == 1, "a pool that was closed ends what it starts afterwards"


def test_programs_end_with_their_pool() -> None:
    programs = pool()
    idle, running = programs.take()[0], programs.take()[0]
    programs.give_back(idle)
    del programs
    gc.collect()
    assert [idle.ends, running.ends] == [1, 1]


def test_a_copy_begins_without_programs() -> None:
    programs = pool()
    programs.give_back(programs.take()[0])
    copy = pickle.loads(pickle.dumps(programs))
    assert (len(programs), len(copy)) == (1, 0)
    assert not copy.take()[1]


def test_threads_never_share_one() -> None:
    programs, clashes, held = pool(), [], set[int]()

    def episodes() -> None:
        for _ in range(200):
            program, _ = programs.take()
            if id(program) in held:
                clashes.append(program)
            held.add(id(program))
            held.discard(id(program))
            programs.give_back(program)

    threads = [threading.Thread(target=episodes) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes
    assert 1 <= len(programs) <= 4
