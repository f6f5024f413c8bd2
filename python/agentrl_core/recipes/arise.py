"""ARISE: one policy solves tasks and keeps a library of skills that it learns from what it did (arXiv:2603.16060).

A skill is a text. Of the 10 in the cache the policy takes the one that is likeliest behind the question,

    s_k = 1/|d_k| (log pi(q d_k) - log pi(q)),   p = softmax(s / 1)

if its p is at least 0.35 (else none), and with probability 0.1 one at random. The group's rollouts see it; one that
used a skill and solved the task is paid 1 more. Of each group an agent (`skill`) makes a new skill, of the first
rollout that solved the task or of the first one, and one rollout more tries it, kept and not trained:

    new skill tried         none of the group right    some right
    right                   1 (critical)               0.5 (redundant)
    wrong                   0                          -1 (harmful)

When the iteration is closed: u <- 0.9 u + 0.1 R of skills that were there; then new ones are added, the weakest of a
full cache goes to the reservoir (100), the best of that comes back when it is better than the weakest of the cache, and
of the reservoir those below the 10th percentile that were never used are deleted. The first 500 iterations only fill
the library.

Needs: the collector's model `logprob`: the sum of log pi over the tokens of each path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, State, option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.rollout import Branch, Group, TextMemory, ask_agent, insert_text, read_notes

Skill = dict[str, Any]
"""`text`, `utility`, and how often it was `used`."""


@dataclass(frozen=True)
class Skills(TextMemory):
    """Rollouts with a skill in sight, and skills that are made of them.

    The draw column `skill_used` is 1 if a skill was shown.

    Args:
        cache: skills that can be chosen.
        reservoir: others that are kept.
        warm_up: iterations that only make skills.
        threshold: the probability of the likeliest skill below which none is shown.
        explored: chance of a random skill.
        decay: of utilities.
        longest: letters of a skill, at most.
        shown: the prompt with a skill: `{prompt}` and `{text}`.
        question: how a skill is asked for: `{question}` and an `{attempt}`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.arise import Skills
        >>> Skills().worth(solved=False, tried=True), Skills().worth(solved=True, tried=True)
        (1.0, 0.5)
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"skill_used": ExtraColumn("trajectory")}

    cache: int = option(10, at_least=1)
    reservoir: int = option(100, at_least=0)
    warm_up: int = option(500, at_least=0)
    threshold: float = option(0.35, at_least=0, at_most=1)
    explored: float = option(0.1, at_least=0, at_most=1)
    decay: float = option(0.9, at_least=0, at_most=1)
    longest: int = option(512, at_least=1)
    shown: str = option("A skill that may help:\n{text}\n\n{prompt}", filled=True)
    question: str = option("{question}\n\nAn attempt:\n{attempt}\n\nSay in short the skill that it takes.", filled=True)

    @property
    def queried_models(self) -> tuple[str, ...]:
        """The model that computes how likely a path is."""
        return ("logprob",)

    def initial_state(self) -> State:
        """No skill."""
        return {"cache": [], "reservoir": []}

    def worth(self, *, solved: bool, tried: bool) -> float:
        """Utility of a new skill, by whether some of the group solved the task, and did so where it was tried."""
        if tried:
            return 0.5 if solved else 1.0
        return -1.0 if solved else 0.0

    def next(self, state: State, closed: IterationRecord) -> State:
        """Utilities, new skills, and who goes where."""
        cache, reservoir = ([dict(skill) for skill in state[name]] for name in ("cache", "reservoir"))
        known = {skill["text"]: skill for skill in (*cache, *reservoir)}
        for text in read_notes(closed.finished, "used"):
            if text in known:
                known[text]["used"] += 1
        for text, worth in read_notes(closed.finished, "tried"):
            if text in known:
                known[text]["utility"] = self.decay * known[text]["utility"] + (1.0 - self.decay) * worth
            else:
                known[text] = {"text": text, "utility": worth, "used": 0}
                cache.append(known[text])
        while len(cache) > self.cache:
            reservoir.append(cache.pop(_weakest(cache)))
        best = max(range(len(reservoir)), key=lambda row: reservoir[row]["utility"], default=None)
        if best is not None and cache:
            weakest = _weakest(cache)
            if reservoir[best]["utility"] > cache[weakest]["utility"]:
                cache[weakest], reservoir[best] = reservoir[best], cache[weakest]
        if reservoir:
            bar = np.quantile([skill["utility"] for skill in reservoir], 0.1)
            reservoir = [skill for skill in reservoir if skill["used"] or skill["utility"] >= bar]
        reservoir = sorted(reservoir, key=lambda skill: -skill["utility"])[: self.reservoir]
        return {"cache": cache, "reservoir": reservoir}

    async def group(self, group: Group) -> None:
        """Choose a skill, roll out, make a new one."""
        skills: Sequence[Skill] = self.recall(group)["cache"]
        text = await self.chosen(group, [skill["text"] for skill in skills])
        prompt = None if text is None else (lambda asked: insert_text(asked, self.shown, text))
        branches = await group.run(
            group.start_many(group.size, prompt, facts={"skill_used": 0.0 if text is None else 1.0})
        )
        if text is not None:
            self.note(group, "used", text, branches[0])
        solved = [branch for branch in branches if branch.success]
        await self.make(group, (solved or branches)[0], solved=bool(solved))

    async def chosen(self, group: Group, skills: Sequence[str]) -> str | None:
        """The skill that is shown; None: none."""
        if not skills or group.iteration < self.warm_up:
            return None
        if group.uniform("explored") < self.explored:
            return skills[int(group.uniform("skill") * len(skills))]
        helpers = group.start_many(len(skills) + 1, role="helper", facts={"skill_used": 0.0})
        lengths = []
        for helper, text in zip(helpers, ("", *skills), strict=True):
            await helper.generate(max_tokens=0)
            before = len(helper.tokens)
            if text:
                helper.write(text, trained=False, ends=False)
            lengths.append(len(helper.tokens) - before)
        whole = await group.query("logprob", helpers)
        for helper in helpers:
            helper.stop("a skill was weighed", status="aborted")
        scores = (whole[1:] - whole[0]) / np.maximum(lengths[1:], 1)
        shares = np.exp(scores - scores.max())
        best = int(shares.argmax())
        return skills[best] if shares[best] / shares.sum() >= self.threshold else None

    async def make(self, group: Group, about: Branch, *, solved: bool) -> None:
        """A new skill of a rollout, and what it is worth."""
        question = self.question.replace("{question}", group.prompt).replace("{attempt}", about.text)
        text = (await ask_agent(group, question, agent="skill", about=about))[: self.longest]
        if not text.strip():
            return
        [tried] = await group.run(
            [group.start(lambda asked: insert_text(asked, self.shown, text), role="helper", facts={"skill_used": 1.0})]
        )
        self.note(group, "tried", [text, self.worth(solved=solved, tried=bool(tried.success))], about)


def _weakest(skills: Sequence[Skill]) -> int:
    """The first of those with the smallest utility."""
    return min(range(len(skills)), key=lambda row: skills[row]["utility"])


ARISE = Recipe(
    name="arise",
    source="arXiv:2603.16060",
    rollout=Skills(),
    reward=(OutcomeScore(), CombineReward(column="skill_used", only="success")),
    advantage=GroupRelative(),
    loss=Policy(),
)
