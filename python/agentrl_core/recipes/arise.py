"""ARISE: one policy solves tasks and keeps a library of skills from its own rollouts (arXiv:2603.16060).

A skill is a text. The cache holds up to 10 skills. Each group uses the skill that is most likely given the question,

    s_k = 1/|d_k| (log pi(q d_k) - log pi(q)),   p = softmax(s / 1)

if its p is at least 0.35; otherwise it uses none. If the likeliest skill passes, a random skill replaces it with
probability 0.1. The group's rollouts see the skill; a rollout that used a skill and solved the task gets a reward of 1
more. If some rollouts of a group score above its mean, the agent `skill` writes a new skill from the first two of them.
One additional rollout tries the new skill; this rollout is stored but not trained. Its result sets the utility of the
new skill:

    new skill tried         none of the group right    some right
    right                   1 (critical)               0.5 (redundant)
    wrong                   0                          -1 (harmful)

At the end of an iteration the library is updated in this order. The utility u of each selected skill becomes 0.9 u +
0.1 R. New skills are added. The skills with the smallest utilities of an overfull cache move to the reservoir (100).
The best skill of the reservoir is exchanged with the weakest of the cache if it is better. Skills of the reservoir that
are below its 10th percentile and were never used are deleted. The first 500 iterations only fill the library. The
abstract has one policy gradient for selection, solution and conclusion; here, as in the public program, only the
solutions have one.

Needs: the collector's model `logprob`: the sum of log pi over the tokens of each path.

Equations:
    Read: README and code of the authors' repository; not the paper's text.

    - 6, score of a skill: `Skills.shares`, the mean log-prob of its tokens.
    - 8, advantage: `GroupRelative`; groups whose scores are all equal are replaced (`DynamicSampling`).
    - 10, selection: `Skills.shares`, `Skills.passes`, then the likeliest skill or a random one.
    - C1, reward of a rollout: `CombineReward(column="skill_used", only="success")`.
    - C2, worth of a new skill: `Skills.worth`.
    - C3, utility: `Skills.maintained`; R is the mean score of the group.
    - C4, maintenance: `Skills.maintained`.
    - C5, deletion: `Skills.maintained`.

Differs:
    - Selection: README and abstract sample from the softmax; the code and this recipe take the likeliest skill.
    - Reward of a selected skill: the reward of one rollout in the code, which does not state which; the group's mean
      here.
    - Worth: a skill is made only if a group has both right and wrong rollouts, so 1 and 0 never occur, in the code and
      here.
    - Training of selection and of new skills: by README and abstract the policy gradient includes selections and the
      worth of new skills (equation 7, which was not read); neither the program nor this recipe has such a term.
    - First skills: the code's configuration gives five; none here.
    - Score: the code's configuration limits it to 128 tokens, which the code does not enforce; all tokens here.
    - Rounds of replaced groups, KL, optimizer steps: not stated; 4, none and 1 here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, State, option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.rollout import Branch, Group, TextMemory, ask_agent, insert_text, read_notes
from agentrl_core.select import DynamicSampling

Skill = dict[str, Any]
"""A skill: its `text`, its `utility`, and how often it was `used`."""


@dataclass(frozen=True)
class Skills(TextMemory):
    """Roll out groups with a skill in the prompt, and make new skills from good rollouts.

    The draw column `skill_used` is 1 if a skill was shown.

    Args:
        cache: largest number of skills that can be selected.
        reservoir: largest number of other skills that are kept.
        warm_up: number of first iterations that only make skills.
        threshold: a skill is shown if the probability of the likeliest one is at least this.
        explored: probability of a random skill, if the likeliest one passes.
        decay: decay of utilities.
        attempts: largest number of good rollouts that a new skill is made from.
        attempt: largest number of characters shown of each of these rollouts.
        longest: largest number of characters of a skill.
        shown: prompt template with a skill: `{prompt}` and `{text}`.
        question: prompt template of the agent that writes skills: `{question}` and the `{attempts}`.

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
    attempts: int = option(2, at_least=1)
    attempt: int = option(400, at_least=1)
    longest: int = option(220, at_least=1)
    shown: str = option("A skill that may help:\n{text}\n\n{prompt}", filled=True)
    question: str = option("{question}\n\n{attempts}\n\nSay in short the skill that it takes.", filled=True)

    @property
    def queried_models(self) -> tuple[str, ...]:
        """Return the name of the model that computes the log-prob of a path."""
        return ("logprob",)

    def initial_state(self) -> State:
        """Return an empty library."""
        return {"cache": [], "reservoir": []}

    def worth(self, *, solved: bool, tried: bool) -> float:
        """Return a new skill's utility; `solved`: a rollout of its group succeeded, `tried`: the skill's trial did."""
        if tried:
            return 0.5 if solved else 1.0
        return -1.0 if solved else 0.0

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the library, updated with the notes of the iteration's groups."""
        finished = closed.finished
        return self.maintained(state, read_notes(finished, "used"), read_notes(finished, "tried"))

    def maintained(self, state: State, used: Sequence[Any], tried: Sequence[Any]) -> State:
        """Update utilities, add, evict, load and delete skills, in this order.

        Args:
            state: the library.
            used: text of each selected skill, with the mean score of its group.
            tried: text of each new skill, with its worth.
        """
        cache, reservoir = ([dict(skill) for skill in state[name]] for name in ("cache", "reservoir"))
        known = {skill["text"]: skill for skill in (*cache, *reservoir)}
        for text, reward in used:
            if text in known:
                known[text]["utility"] = self.decay * known[text]["utility"] + (1.0 - self.decay) * reward
                known[text]["used"] += 1
        for text, worth in tried:
            if text not in known:
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
            threshold = sorted(skill["utility"] for skill in reservoir)[max(len(reservoir) // 10 - 1, 0)]
            reservoir = [skill for skill in reservoir if skill["used"] or skill["utility"] >= threshold]
        reservoir = sorted(reservoir, key=lambda skill: -skill["utility"])[: self.reservoir]
        return {"cache": cache, "reservoir": reservoir}

    async def group(self, group: Group) -> None:
        """Select a skill, roll out the group, and make a new skill from rollouts above the mean, if any."""
        skills: Sequence[Skill] = self.recall(group)["cache"]
        text = await self.chosen(group, [skill["text"] for skill in skills])
        prompt = None if text is None else (lambda messages: insert_text(messages, self.shown, text))
        branches = await group.run(
            group.start_many(group.size, prompt, facts={"skill_used": 0.0 if text is None else 1.0})
        )
        scores = await group.score(branches=branches)
        if np.isnan(scores).all():
            return
        mean = float(np.nanmean(scores))
        if text is not None:
            self.note(group, "used", [text, mean], branches[0])
        better = [branch for branch, score in zip(branches, scores, strict=True) if score > mean]
        if better:
            solved = any(branch.success for branch in branches)
            await self.make(group, better[: self.attempts], solved=solved)

    def shares(self, sums: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability of each skill, from the summed log-probs and the number of its tokens."""
        scores = sums / np.maximum(lengths, 1)
        shares = np.exp(scores - scores.max())
        return np.asarray(shares / shares.sum())

    def passes(self, shares: NDArray[np.float64]) -> bool:
        """Return whether the likeliest skill is likely enough to be shown."""
        return bool(shares.max() >= self.threshold)

    async def chosen(self, group: Group, skills: Sequence[str]) -> str | None:
        """Return the skill to show, or None."""
        if not skills or group.iteration < self.warm_up:
            return None
        helpers = group.start_many(len(skills) + 1, role="helper", facts={"skill_used": 0.0})
        lengths = []
        for helper, text in zip(helpers, ("", *skills), strict=True):
            await helper.generate(max_tokens=0)
            before = len(helper.tokens)
            if text:
                helper.write(text, trained=False, ends=False)
            lengths.append(len(helper.tokens) - before)
        logprobs = await group.query("logprob", helpers)
        for helper in helpers:
            helper.stop("its skill was scored", status="aborted")
        shares = self.shares(logprobs[1:] - logprobs[0], np.array(lengths[1:]))
        if not self.passes(shares):
            return None
        if group.uniform("explored") < self.explored:
            return skills[int(group.uniform("skill") * len(skills))]
        return skills[int(shares.argmax())]

    async def make(self, group: Group, good: Sequence[Branch], *, solved: bool) -> None:
        """Make a new skill from some rollouts, try it in one rollout, and note its worth."""
        about = good[0]
        attempts = "\n\n".join(f"An attempt:\n{branch.text[: self.attempt]}" for branch in good)
        question = self.question.replace("{question}", group.prompt).replace("{attempts}", attempts)
        text = (await ask_agent(group, question, agent="skill", about=about))[: self.longest]
        if not text.strip():
            return
        [trial] = await group.run(
            [
                group.start(
                    lambda messages: insert_text(messages, self.shown, text), role="helper", facts={"skill_used": 1.0}
                )
            ]
        )
        self.note(group, "tried", [text, self.worth(solved=solved, tried=bool(trial.success))], about)


def _weakest(skills: Sequence[Skill]) -> int:
    """Return the index of the skill with the smallest utility, the first one of equals."""
    return min(range(len(skills)), key=lambda row: skills[row]["utility"])


ARISE = Recipe(
    name="arise",
    source="arXiv:2603.16060",
    rollout=Skills(),
    admit=DynamicSampling(),
    reward=(OutcomeScore(), CombineReward(column="skill_used", only="success")),
    advantage=GroupRelative(),
    loss=Policy(),
)
