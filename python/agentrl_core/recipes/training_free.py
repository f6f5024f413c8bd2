"""Training-Free GRPO: compare the rollouts of a group in words, and add the lessons to the prompt (arXiv:2510.08191).

No weight changes. Each task is rolled out five times with the current experiences in the prompt. If the scores differ,
an agent (`experience`) summarises each rollout, contrasts the rollouts, and proposes edits of the library of
experiences: JSON objects `{"operation": "ADD", "id": 3, "text": "..."}`, with the operations ADD, UPDATE, DELETE and
NONE. One more call for the batch merges all proposals into one plan, in up to three tries; a plan that cannot be parsed
is empty. The plan is applied in order when the iteration is closed: an operation without a text has no effect, an
UPDATE of an unknown id adds its text, and experiences are renumbered.

Equations:
    Read: the code with its documentation, a port, and a review; the paper's text was not read.

    - P1, groups without difference: `Experiences(taught="differ")`.
    - C1, groups that teach: an option, `Experiences(taught="between")`; the same groups if scores are 0 or 1.
    - C2, semantic advantage: `Experiences(proposals=2)`; a rollout whose summary is empty leaves the group, whose
      scores are then checked again.
    - C3, operations: `Experiences`; all groups of a batch see the same experiences.
    - C4, application of the plan: `Experiences.applied`.
    - C5, batches: left out: the collector decides how many tasks a batch has.

Differs:
    - Right answer: the prompts of the summaries and the comparison show it in the code; here they show `Task.solution`,
      if the task has one.
    - Without ground truth: the code compares all groups; here the score decides.
    - Failed calls of the language model: the code drops the rollout or the group; here the engine retries or raises.

There are no weights to update: collect, and call `Collector.end_iteration(batch, {})`. To train weights as well, use
the recipe's loss.
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
    """Compare the rollouts of each group in words, and show the lessons to the groups of the next iteration.

    Args:
        column: draw column of the scores by which rollouts are compared.
        taught: compared groups: `differ`: groups with different scores; `between`: groups with a mean score between 0
            and 1.
        proposals: largest number of operations that one group may propose.
        shown: prompt template if there are experiences: `{prompt}`, and the numbered experiences as `{text}`.
        summarise: prompt template to summarise a rollout: `{question}`, `{solution}`, `{attempt}` and `{score}`.
        contrast: prompt template to compare a group's rollouts: `{question}`, `{solution}` and `{summaries}`.
        edit: prompt template to propose changes of the library: `{experiences}` and `{contrast}`.
        merge: prompt template to merge the proposals into one plan: `{experiences}` and `{proposals}`.

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
        """Return an empty list of experiences."""
        return {"texts": []}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Apply the plans of the iteration to the experiences."""
        texts: list[str] = state["texts"]
        for plan in read_notes(closed.finished, "plan"):
            texts = self.applied(texts, plan)
        return {"texts": texts}

    async def group(self, group: Group) -> None:
        """Roll out a group with the current experiences in the prompt."""
        texts = self.recall(group)["texts"]
        experiences = _numbered(texts)
        prompt = (lambda messages: insert_text(messages, self.shown, experiences)) if texts else None
        await group.run(group.start_many(group.size, prompt))

    async def cohort(self, groups: Cohort) -> None:
        """Roll out all groups, compare the rollouts of each group, and merge the proposed changes into a plan."""
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
        """Return the changes of the list of experiences that a comparison of a group's rollouts proposes.

        The list is empty if `teaches` is False for the scores of all rollouts, or of the rollouts with a summary.
        """
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
        """Return whether a group with these scores is compared: they differ, or their mean is between 0 and 1."""
        if not len(scores):
            return False
        return bool(0.0 < scores.mean() < 1.0 if self.taught == "between" else scores.min() < scores.max())

    async def plan(self, group: Group, proposed: list[dict[str, Any]]) -> None:
        """Merge all proposed changes into one plan and note it; an empty plan if none of three tries can be parsed."""
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
        """Return the experiences after the operations of a plan, applied in order."""
        experiences = dict(enumerate(texts))
        for place, each in enumerate(plan, len(texts)):
            if not each["text"]:
                continue
            if each["operation"] == "DELETE":
                experiences.pop(each["id"], None)
            elif each["operation"] == "UPDATE" and each["id"] in experiences:
                experiences[each["id"]] = each["text"]
            else:
                experiences[place] = each["text"]
        return list(experiences.values())


def operations(text: str) -> list[dict[str, Any]]:
    """Return the ADD, UPDATE and DELETE operations in a text that can be parsed.

    Example:
        >>> from agentrl_core.recipes.training_free import operations
        >>> operations('{"operation": "ADD", "text": "Check."} {"operation": "NONE"} {"oper')
        [{'operation': 'ADD', 'id': None, 'text': 'Check.'}]
    """
    parsed = []
    for part in _OBJECT.findall(text):
        try:
            entry = json.loads(part)
        except ValueError:
            continue
        number, content = entry.get("id"), entry.get("text", "")
        if entry.get("operation") in OPERATIONS and type(number) in (int, type(None)) and isinstance(content, str):
            parsed.append({"operation": entry["operation"], "id": number, "text": content.strip()})
    return parsed


def _numbered(texts: Sequence[str]) -> str:
    return "\n".join(f"{number}: {text}" for number, text in enumerate(texts)) or "(none)"


TRAINING_FREE = Recipe(
    name="training_free",
    source="arXiv:2510.08191",
    rollout=Experiences(),
    advantage=GroupRelative(),
    loss=Policy(),
)
