"""WebAgent-R1: the context of each action, by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from riddles import RIGHT, TOKENIZER, WRONG, check_resumes, solve, step

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout import Branch, ObservationWindow, Rollout


def counting(context: str, request: Request) -> str:
    """Return a speaker that looks three times, then answers by its seed."""
    turns = context.count("<|im_start|>assistant\n") - 1
    return f"look {turns}" if turns < 3 else (RIGHT if request.seed % 2 else WRONG)


def contexts(program: Rollout) -> list[list[str]]:
    """Return the context of each action: the texts of the messages."""
    results: list[list[str]] = []

    def speak(context: str, request: Request) -> str:
        plain = context.replace("<tool_response>\n", "").replace("\n</tool_response>", "")
        parts = [part.split("\n", 1)[1].split("<|im_end|>")[0] for part in plain.split("<|im_start|>")[1:]]
        results.append(parts[:-1])
        looks = sum(each in context for each in ("look a", "look b", "look c"))
        del request
        return ("look a", "look b", "look c", RIGHT)[min(len(results) - 1, 3) if looks < 4 else 3]

    run = solve(program, speak, group_size=1)
    assert len(run.drawn) == 1
    assert run.drawn[0].status == "finished"
    return results


def test_only_the_newest_page_is_there() -> None:
    page = "(an earlier page)"
    assert contexts(recipes.WEB_AGENT_R1.rollout) == [
        ["riddle?"],
        ["riddle?", "look a", "go on"],
        ["riddle?", "look a", page, "look b", "go on"],
        ["riddle?", "look a", page, "look b", page, "look c", "go on"],
    ]
    assert contexts(ObservationWindow(observations=2, placeholder="-"))[3] == [
        "riddle?",
        "look a",
        "-",
        "look b",
        "go on",
        "look c",
        "go on",
    ]
    # A window of two turns: earlier turns are gone.
    assert contexts(ObservationWindow(observations=2, turns=2))[3] == ["riddle?", "look b", "go on", "look c", "go on"]


def test_each_action_is_trained_once_after_the_context_it_was_sampled_from() -> None:
    run = solve(recipes.WEB_AGENT_R1, counting, group_size=2)
    for row in run.drawn:
        assert row.trained.split("<|im_end|>")[:3] == ["look 0", "look 1", "look 2"]
    batch_contexts = run.batch.contexts()
    texts = [TOKENIZER.decode(batch_contexts.tokens[a:b]) for a, b in pairwise(batch_contexts.offsets)]
    assert max(text.count("(an earlier page)") for text in texts) == 2
    assert all(text.count("go on") <= 1 for text in texts)


def test_a_turn_that_is_not_in_the_context_is_refused() -> None:
    class LosesATurn(Rollout):
        async def branch(self, branch: Branch) -> None:
            await branch.turn()
            second = await branch.turn()
            await branch.rewrite([*branch.prompt_messages, second, {"role": "user", "content": "and now?"}])
            with pytest.raises(InvalidInputError, match=r"turn 0 is not in the current context; use one of: \[1\]"):
                await branch.rewrite([*branch.prompt_messages, branch.turns[0], {"role": "user", "content": "?"}])
            third = await branch.turn()
            await branch.rewrite(
                [*branch.prompt_messages, second, {"role": "user", "content": "-"}, third, *branch.prompt_messages]
            )
            span = branch.path.spans
            tokens = branch.tokens
            assert [TOKENIZER.decode(tokens[slice(*span[turn])]) for turn in (1, 2)] == [
                "look 1<|im_end|>",
                "look 1<|im_end|>",
            ]

    solve(LosesATurn(), counting, group_size=1)


def test_the_recipe_resumes_and_takes_optimizer_steps() -> None:
    assert check_resumes(recipes.WEB_AGENT_R1, counting) >= 2
    assert step(recipes.WEB_AGENT_R1, solve(recipes.WEB_AGENT_R1, counting, group_size=8).batch) >= 1
