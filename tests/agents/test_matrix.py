"""The docs' table of clients and features equals the tests' own declarations."""

from __future__ import annotations

import ast
from pathlib import Path

import matrix

# Known mistakes of other recorders (docs/agents.md names each), and our test for it.
MISTAKES = {
    "tool calls vanish from turn 2": "test_a_tool_agent_receives_the_tool_call_and_text_of_each_turn",
    "edits of an agent are ignored": "test_an_edited_answer_is_a_branch_and_never_the_sampled_one",
    "ids are lost when tools are streamed": "test_openai_chat",
    "lists of log-probs are compacted": "test_a_token_without_a_log_prob_is_not_trained",
    "retries are counted twice": "test_a_request_retried_after_a_client_timeout_is_recorded_once",
    "rewards are discounted across sub-agents": "test_sub_agents_do_not_discount_each_other",
    "log-probs of another distribution": "test_a_server_whose_log_probs_are_raw_is_refused",
    "reasoning that a client drops is lost": "test_reasoning_that_a_client_drops_stays_in_the_context",
    "bytes and work grow with the square": "test_bytes_grow_with_the_turns_alone",
    "code for each model": "test_a_chat_continues_in_any_template_without_special_code",
    "truncated turns are trained as whole": "test_a_truncated_answer_is_closed_before_the_next_message",
    "a crash loses sessions": "test_kills_lose_no_answer_and_double_none",
    "only the first choice is read": "test_several_answers_are_forks_of_one_prompt_and_each_is_trained_once",
    "weights change in mid-session": "test_new_weights_begin_with_the_next_answer",
    "sessions are confused": "test_a_key_of_a_session_opens_no_other",
}


def test_the_table_is_current() -> None:
    text = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.page(text) == text, "write it again: python tests/support/matrix.py"
    clients = matrix.features_by_client()
    assert len(clients) >= 8
    assert all("answers" in shown for shown in clients.values())


def test_each_mistake_of_others_has_its_test() -> None:
    assert len(MISTAKES) == 15
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, functions)}
    assert set(MISTAKES.values()) <= names
    page = matrix.PAGE.read_text(encoding="utf-8")
    for test in MISTAKES.values():
        assert test in page
