"""Questions of two hops over a corpus: search, read the reply, search again, answer."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from teachable import FACTS, Turns, checked

from agentrl_core import env

_NAMES = (
    "anna bruno carl dora emil flora gustav hanna igor julia karl lena marco nora oscar paula quentin rosa stefan "
    "tina ugo vera walter xenia yuri zora albert berta conrad daria"
)
PEOPLE = tuple(_NAMES.split())
_OTHER_WORDS = "of is who search answer what nothing found [1] [2]"
RELATIONS = ("boss", "friend", "mother", "teacher")
_TURNS = 6


class TwoHop:
    """Questions such as `boss of mother of anna`, over 120 documents such as `mother of anna is vera`.

    There are two actions: `search`, a relation and a person, which returns the two best documents of BM25; and `answer`
    and a person, which ends the episode. Each document names two people, so the higher-ranked one may be about the
    other person. The reward is 1 for the right person.

    Args:
        held_out: number of held-out questions of 480; the others are for training.
    """

    runs: ClassVar = "inline"
    facts: ClassVar = FACTS
    words: ClassVar = (*PEOPLE, *RELATIONS, *_OTHER_WORDS.split())

    def __init__(self, *, held_out: int = 192) -> None:
        rng = random.Random(43)  # noqa: S311 -- a corpus, no secret
        self.known: dict[tuple[str, str], str] = {}
        for relation in RELATIONS:
            # Each person is the relation of one other, so that two documents contain both words of a query.
            table = rng.sample(PEOPLE, len(PEOPLE))
            self.known |= {
                (relation, person): other for person, other in zip(table, [*table[1:], table[0]], strict=True)
            }
        documents = [f"{relation} of {person} is {other}" for (relation, person), other in self.known.items()]
        rng.shuffle(documents)
        self.search = env.Search(documents, top=2)
        questions = [[first, second, person] for first in RELATIONS for second in RELATIONS for person in PEOPLE]
        rng.shuffle(questions)
        self._questions = {"held_out": questions[:held_out], "train": questions[held_out:]}

    def tasks(self, count: int, *, split: env.base.Split = "train", start: int = 0) -> list[env.Task]:
        """Return questions of a split."""
        questions = self._questions[split]
        return [
            env.Task(f"two_hop/{split}/{number}", "Who is it?", questions[number][0], {"question": questions[number]})
            for number in checked(start, count, len(questions))
        ]

    def reset(self, task: env.Task, seed: int) -> Inquiry:
        """Start with a question."""
        del seed
        payload: Any = task.payload
        return Inquiry(self, *payload["question"])


class Inquiry(Turns):
    """One question."""

    def __init__(self, world: TwoHop, outer: str, inner: str, person: str) -> None:
        super().__init__(_TURNS)
        self._world, self._outer, self._inner, self._person = world, outer, inner, person
        self._between = world.known[inner, person]
        self._lookups: list[tuple[str, str]] = []
        self.observation = f"who is {outer} of {inner} of {person}"

    def step(self, action: str) -> env.StepResult:
        """Search, or score the answer."""
        words = action.split()
        if len(words) == 2 and words[0] == "answer" and words[1] in PEOPLE:
            return self.ended(success=words[1] == self._world.known[self._outer, self._between])
        if len(words) == 3 and words[0] == "search" and words[1] in RELATIONS and words[2] in PEOPLE:
            self._lookups.append((words[1], words[2]))
            reply = self._world.search(f"{words[1]} {words[2]}").text
            return self.answered(" ".join(reply.split()), env.StepFlag.TOOL_RESULT)
        return self.refused("what")

    def state_key(self) -> bytes:
        """Return the question and the searches so far, in any order."""
        return f"{self._outer} {self._inner} {self._person} {sorted(set(self._lookups))}".encode()

    def best(self) -> str:
        """Return the next search, or the answer."""
        if (self._inner, self._person) not in self._lookups:
            return f"search {self._inner} {self._person}"
        if (self._outer, self._between) not in self._lookups:
            return f"search {self._outer} {self._between}"
        return f"answer {self._world.known[self._outer, self._between]}"

    def slip(self, rng: random.Random) -> str:
        """Return a search for another relation or person, or a guessed answer."""
        return rng.choice(
            (
                f"search {rng.choice(RELATIONS)} {self._person}",
                f"search {self._outer} {rng.choice(PEOPLE)}",
                f"answer {rng.choice(PEOPLE)}",
            )
        )
