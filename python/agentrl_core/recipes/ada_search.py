"""AdaSearch: train to solve tasks with and without search, then to decide which is needed (arXiv:2512.16883).

In the first stage half of a group is prompted to answer from the model's knowledge, the other half to search;
advantages compare each half with itself. The second stage trains the decision between the two manners. The label of a
task is "knowledge suffices" if at least half of its first-stage rollouts without search were right. If there are
none, 8 are sampled when the task is visited. A decision is rewarded with 1 if it matches the label, otherwise with 0.
Both stages use GRPO. The paper's numbers are not public: 8, 0.5 and the length of the first stage are chosen here.

Equations:
    Read: the abstract and notes by others; there is no public code, and the paper's text was not read.

    - N1, stage 1: `SearchWhereNeeded`, with half of a group in each manner, and `GroupRelative` within each manner.
    - N2, pseudo label: `SearchWhereNeeded.suffices`.
    - N3, stage 2: `Decision`; this stage does not train answers.
    - N4, advantage: `GroupRelative`.
    - N5, F1 of awareness: left out: it is a metric for evaluation, not a reward.
    - N6, inference: not computed: decisions and answers are separate episodes here; the caller has to answer in the
      decided manner. The loss leaves out the tokens of search results.

Differs:
    - Label: made once after the first stage in the notes; here computed from the rollouts of the first stage, and
      sampled anew with the current weights at each visit of a task that had none.

Needs: a model that follows the instruction next to the task. A model that does not, such as the small one of `agentrl
train`, answers no task right in either manner: all its rollouts get the same reward, and it learns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, Rows, State, option
from agentrl_core.env import ExtraColumn, Task
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, SideTask, TextMemory, insert_text

KNOWS, SEARCHES, DECIDES = 0.0, 1.0, 2.0


@dataclass(frozen=True)
class Decision(SideTask):
    """Reward the model's decision whether its knowledge suffices: the last `know` or `search` in its text.

    Args:
        label: the right decision, `know` or `search`.

    Example:
        >>> from agentrl_core.recipes.ada_search import Decision
        >>> Decision(label="search").reward("I may know it, but I search"), Decision(label="search").reward("no idea")
        (1.0, 0.0)
    """

    label: str = option("know", filled=True)

    def reward(self, text: str) -> float:
        """Return 1 if the decision is the label, otherwise 0."""
        places = {word: text.lower().rfind(word) for word in ("know", "search")}
        latest = max(places, key=lambda word: places[word])
        return float(places[latest] >= 0 and latest == self.label)


@dataclass(frozen=True)
class SearchWhereNeeded(TextMemory):
    """Train answers without and with search, then the decision which of the two a task needs.

    The draw column `manner` is 0 for answers from knowledge, 1 for those with search, and 2 for decisions.

    Args:
        first_stage: iterations of the first stage.
        samples: rollouts without search that make a label if the first stage had none.
        threshold: smallest success rate without search at which knowledge suffices.
        knowing: prompt template of answers from knowledge; `{prompt}` is the task's prompt.
        searching: prompt template of answers with search.
        deciding: prompt template of decisions.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ada_search import SearchWhereNeeded
        >>> SearchWhereNeeded().initial_state()
        {'rates': {}}
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"manner": ExtraColumn("trajectory")}

    first_stage: int = option(200, at_least=0)
    samples: int = option(8, at_least=1)
    threshold: float = option(0.5, at_least=0, at_most=1)
    knowing: str = option("{prompt}\n\nAnswer from what you know, without search.", filled=True)
    searching: str = option("{prompt}\n\nSearch before you answer.", filled=True)
    deciding: str = option(
        "{prompt}\n\nDo you know the answer, or do you have to search? Say know or search.", filled=True
    )

    def initial_state(self) -> State:
        """Return a state without counts."""
        return {"rates": {}}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Add the rollouts of the first stage without search, and the right ones, to the counts of each task."""
        if closed.iteration >= self.first_stage:
            return state
        rows = Rows(closed.batch, "draw")
        known = (rows.values("manner") == KNOWS) & rows.valid & rows.is_known("success")
        tasks, right = rows.names("task_id"), rows.flags("success")
        rates = {task: list(rate) for task, rate in state["rates"].items()}
        for row in np.flatnonzero(known).tolist():
            attempts, successes = rates.get(tasks[row], (0, 0))
            rates[tasks[row]] = [attempts + 1, successes + int(right[row])]
        return {"rates": rates}

    async def group(self, group: Group) -> None:
        """Roll out half of the group without and half with search in the first stage, and decisions afterwards."""
        if group.iteration < self.first_stage:
            half = group.size // 2
            await group.run([*self.start(group, group.size - half, KNOWS), *self.start(group, half, SEARCHES)])
            return
        suffices = await self.suffices(group)
        task = Task(
            f"{group.task.task_id}/decision",
            self.deciding.replace("{prompt}", group.prompt),
            "decision",
            group.task.payload,
        )
        decision = Decision("manner", DECIDES, label="know" if suffices else "search")
        await group.spawn(task, size=group.size, program=decision)

    def start(
        self, group: Group, count: int, manner: float, role: Literal["member", "baseline", "helper"] = "member"
    ) -> list[Branch]:
        """Start `count` branches that are instructed to answer without search or with search."""
        template = self.knowing if manner == KNOWS else self.searching
        return group.start_many(
            count,
            lambda content: insert_text(content, template, ""),
            role=role,
            facts={"manner": manner},
        )

    async def suffices(self, group: Group) -> bool:
        """Return whether knowledge suffices for a task; sample rollouts if the first stage had none."""
        attempts, successes = self.recall(group)["rates"].get(group.task.task_id, (0, 0))
        if not attempts:
            branches = await group.run(self.start(group, self.samples, KNOWS, "helper"))
            attempts, successes = len(branches), sum(bool(branch.success) for branch in branches)
        return bool(successes / attempts >= self.threshold)


ADA_SEARCH = Recipe(
    name="ada_search",
    source="arXiv:2512.16883",
    rollout=SearchWhereNeeded(),
    advantage=GroupRelative(group_by="group_id,manner"),
    loss=Policy(),
)
