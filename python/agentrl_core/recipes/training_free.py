"""Training-Free GRPO: a group is compared in words, and what was learned is a text in the prompt (arXiv:2510.08191).

No weight changes. Each task is rolled out five times with the experiences so far in the prompt. If their scores
differ, an agent (`experience`) sums up each rollout, contrasts them, and proposes how to edit the library of
experiences: JSON objects `{"operation": "ADD", "id": 3, "text": "..."}`, the operations ADD, UPDATE, DELETE and NONE.
One more call for the batch makes one plan of all proposals, in up to three tries; one that cannot be read is empty. The
plan is applied when the iteration is closed, in its order: an operation without a text does nothing, an UPDATE of an
unknown id adds, and experiences are numbered anew.

Equations:
    Read: the code with its documentation, a port, and a review; the paper's text was not read.

    - P1, groups without difference: `Experiences(taught="differ")`.
    - C1, groups that teach: an option, `Experiences(taught="between")`; the same for scores of 0 and 1.
    - C2, semantic advantage: `Experiences(proposals=2)`; a rollout whose summary is empty leaves the group, which is
      then judged again.
    - C3, operations: `Experiences`; all groups of a batch see the same experiences.
    - C4, application of the plan: `Experiences.applied`.
    - C5, batches: left out: how many tasks a batch has is asked of the collector.

Differs:
    - Right answer: shown to the summaries and the comparison in the code; here `Task.solution`, if the task has one.
    - Without ground truth: all groups teach in the code; here the score decides.
    - Failed calls of the language model: the code drops the rollout or the group; here the engine retries or raises.

There is nothing to update: collect, and call `Collector.end_iteration(batch, {})`. Whoever trains as
well adds a loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, State, option
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Cohort, Group, TextMemory, ask_agent, insert_text, read_notes

_OBJECT = re.compile(r"\{[^{}]*\}")
_TRIES = 3
OPERATIONS = ("ADD", "UPDATE", "DELETE")


@dataclass(frozen=True)
class Experiences(TextMemory):
    """Groups that are compared in words; what comes of it is shown to the groups of the next iteration.

    Args:
        column: of the draws: what rollouts are compared by.
        taught: the groups that are compared: those whose scores `differ`, or those with a mean score `between` 0 and 1.
        proposals: experiences that one group may propose, at most.
        shown: the prompt where there are experiences: `{prompt}` and the numbered ones as `{text}`.
        summarise: what is asked about a rollout: `{question}`, `{solution}`, `{attempt}` and `{score}`.
        contrast: about a group: `{question}`, `{solution}` and the `{summaries}`.
        edit: how the library is to change: `{experiences}` and the `{contrast}`.
        merge: one plan of several: `{experiences}` and the `{proposals}`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.training_free import Experiences
        >>> plan = [{"operation": "DELETE", "id": 0, "text": "-"}, {"operation": "ADD", "id": None, "text": "Add up."}]
        >>> Experiences().applied(["Guess.", "Check."], plan)
        ['Check.', 'Add up.']
    """

    column: str = option("score", filled=True)
    taught: Literal["differ", "between"] = "differ"
    proposals: int = option(2, at_least=1)
    shown: str = option("{prompt}\n\nExperiences that may help:\n{text}", filled=True)
    summarise: str = option(
        "{question}\n\nSolution: {solution}\n\nAn attempt, which scored {score}:\n{attempt}\n\nSum up what it did.",
        filled=True,
    )
    contrast: str = option(
        "{question}\n\nSolution: {solution}\n\n{summaries}\n\nWhat did the better attempts do that the others did not?",
        filled=True,
    )
    edit: str = option(
        "Experiences:\n{experiences}\n\nNew insight:\n{contrast}\n\n"
        "How should the list change? One JSON object a line: "
        '{"operation": "ADD" or "UPDATE" or "DELETE" or "NONE", "id": number, "text": "..."}; every change has a text.',
        filled=True,
    )
    merge: str = option(
        "Experiences:\n{experiences}\n\nProposals:\n{proposals}\n\n"
        "Make one list of changes of them, as JSON objects of the same form.",
        filled=True,
    )

    def initial_state(self) -> State:
        """No experience."""
        return {"texts": []}

    def next(self, state: State, closed: IterationRecord) -> State:
        """The plans of the iteration are applied."""
        texts: list[str] = state["texts"]
        for plan in read_notes(closed.finished, "plan"):
            texts = self.applied(texts, plan)
        return {"texts": texts}

    async def group(self, group: Group) -> None:
        """Rollouts, with what is known in the prompt."""
        texts = self.recall(group)["texts"]
        told = _numbered(texts)
        prompt = (lambda asked: insert_text(asked, self.shown, told)) if texts else None
        await group.run(group.start_many(group.size, prompt))

    async def cohort(self, groups: Cohort) -> None:
        """Roll all out; then compare, and make a plan."""
        await groups.run()
        scores = dict(zip((group.name for group in groups), await groups.score(self.column), strict=True))
        proposed: dict[str, list[dict[str, Any]]] = {}

        async def compare(group: Group) -> None:
            proposed[group.name] = await self.compared(
                group, group.branches[: len(scores[group.name])], scores[group.name]
            )

        await groups.run_each(compare)
        plan = [each for group in groups for each in proposed.get(group.name, [])]
        first = next((group for group in groups if proposed.get(group.name)), None)
        if first is not None:
            await groups.run_each(lambda group: self.plan(group, plan), [first])

    async def compared(
        self, group: Group, branches: Sequence[Branch], scores: NDArray[np.float64]
    ) -> list[dict[str, Any]]:
        """Proposals of a group; none if its scores, or those of the summarised, teach nothing."""
        known = [row for row in range(len(branches)) if np.isfinite(scores[row])]
        if not self.teaches(scores[known]):
            return []
        summaries, summarised = [], []
        task = {"question": group.prompt, "solution": "\n\n".join(group.task.solution) or "not given"}
        for row in known:
            parts = {**task, "attempt": branches[row].text, "score": f"{scores[row]:g}"}
            summary = await self._ask(group, self.summarise, parts, branches[row])
            if summary.strip():
                summaries.append(f"Attempt with score {scores[row]:g}:\n{summary}")
                summarised.append(row)
        if not self.teaches(scores[summarised]):
            return []
        parts = {**task, "summaries": "\n\n".join(summaries)}
        contrast = await self._ask(group, self.contrast, parts, branches[known[0]])
        parts = {"experiences": _numbered(self.recall(group)["texts"]), "contrast": contrast}
        return operations(await self._ask(group, self.edit, parts, branches[known[0]]))[: self.proposals]

    def teaches(self, scores: NDArray[np.float64]) -> bool:
        """Whether a group with these scores is compared."""
        if not len(scores):
            return False
        return bool(0.0 < scores.mean() < 1.0 if self.taught == "between" else scores.min() < scores.max())

    async def plan(self, group: Group, proposed: list[dict[str, Any]]) -> None:
        """One plan of all proposals, which is noted; empty if none of three tries can be read."""
        known = _numbered(self.recall(group)["texts"])
        parts = {"experiences": known, "proposals": "\n".join(map(json.dumps, proposed))}
        about = group.branches[0]
        merged: list[dict[str, Any]] = []
        for _ in range(_TRIES):
            answer = await self._ask(group, self.merge, parts, about)
            merged = operations(answer)
            if _OBJECT.search(answer):
                break
        self.note(group, "plan", merged, about)

    async def _ask(self, group: Group, question: str, parts: Mapping[str, str], about: Branch) -> str:
        for name, text in parts.items():
            question = question.replace("{" + name + "}", text)
        return await ask_agent(group, question, agent="experience", about=about)

    def applied(self, texts: Sequence[str], plan: Sequence[Mapping[str, Any]]) -> list[str]:
        """The experiences after a plan, whose operations are applied in their order."""
        found = dict(enumerate(texts))
        for place, each in enumerate(plan, len(texts)):
            if not each["text"]:
                continue
            if each["operation"] == "DELETE":
                found.pop(each["id"], None)
            elif each["operation"] == "UPDATE" and each["id"] in found:
                found[each["id"]] = each["text"]
            else:
                found[place] = each["text"]
        return list(found.values())


def operations(text: str) -> list[dict[str, Any]]:
    """The operations in a text, those that can be read; NONE is none.

    Example:
        >>> from agentrl_core.recipes.training_free import operations
        >>> operations('{"operation": "ADD", "text": "Check."} {"operation": "NONE"} {"oper')
        [{'operation': 'ADD', 'id': None, 'text': 'Check.'}]
    """
    found = []
    for part in _OBJECT.findall(text):
        try:
            said = json.loads(part)
        except ValueError:
            continue
        number, told = said.get("id"), said.get("text", "")
        if said.get("operation") in OPERATIONS and type(number) in (int, type(None)) and isinstance(told, str):
            found.append({"operation": said["operation"], "id": number, "text": told.strip()})
    return found


def _numbered(texts: Sequence[str]) -> str:
    return "\n".join(f"{number}: {text}" for number, text in enumerate(texts)) or "(none)"


TRAINING_FREE = Recipe(
    name="training_free",
    source="arXiv:2510.08191",
    rollout=Experiences(),
    advantage=GroupRelative(),
    loss=Policy(),
)
