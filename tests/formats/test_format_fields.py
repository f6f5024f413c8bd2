"""Records of each format are read field by field as documented on the page of fields."""

import copy

import pytest
from format_fields import ATIF, CHATS, FORMATS, PAGE, VERIFIERS, outcome, page

import agentrl_core as arl
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

WRITTEN = [each for each in FORMATS if each.write is not None]
ODD = (None, 0, False, "", [], {}, 0.0, [None], {"a": None}, "\u00e9\n", 2**60, -1e-9)
FREE = {
    CHATS.title: ("heron", "messages.0.heron", "messages.1.heron", "messages.2.heron"),
    ATIF.title: ("notes", "extra.heron", "agent.heron", "steps.0.heron", "steps.1.metrics.heron", "steps.2.heron"),
    VERIFIERS.title: ("metrics", "info.heron", "task.data", "nodes.0.heron", "nodes.1.usage", "rewards.right.heron"),
}
NULLS = {
    CHATS.title: (
        "task",
        "group",
        "reward",
        "success",
        "step_rewards",
        "tools",
        "messages.0.name",
        "messages.1.weight",
    ),
    ATIF.title: (
        *(
            "session_id",
            "agent.tool_definitions",
            "agent.extra",
            "extra",
            "extra.reward",
            "extra.task",
            "extra.success",
        ),
        *("steps.0.extra", "steps.0.metrics", "steps.1.extra", "steps.1.tool_calls", "steps.1.reasoning_content"),
        *("steps.1.observation", "steps.1.metrics.logprobs", "steps.2.metrics", "steps.1.is_copied_context"),
    ),
    VERIFIERS.title: ("info", "tools", "rewards", "task", "rewards.right", "nodes.0.sampled", "nodes.1.logprobs"),
}
NUMBERS = {
    CHATS.title: {"task": (0, 7, ""), "group": (0, ""), "reward": (0, 0.1, 1, -3), "success": (0, 1, False, True)},
    ATIF.title: {"extra.task": (0, ""), "extra.reward": (0, 0.1), "extra.success": (0, False), "session_id": ("",)},
    VERIFIERS.title: {
        "rewards.right.score": (0, 0.1),
        "rewards.right.weight": (0, 2),
        "info.step_rewards": ([0], [0.1]),
    },
}


def there_and_back(given, records):
    before = copy.deepcopy(records)
    back = list(given.write(given.read(records)))
    assert records == before, "what was given stays as it is"
    return back


def test_the_page_of_fields_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/support/format_fields.py"


@pytest.mark.parametrize("given", WRITTEN, ids=lambda each: each.title)
def test_a_round_trip_in_one_format_keeps_or_refuses_each_field(given):
    outcomes = {place: outcome(given, place, value, given) for place, value in given.fields.items()}
    assert set(outcomes.values()) == {"kept", "refused"} or set(outcomes.values()) == {"kept"}, outcomes


@pytest.mark.parametrize("given", WRITTEN, ids=lambda each: each.title)
def test_any_value_of_a_free_field_survives_a_round_trip(given):
    for place in FREE[given.title]:
        for value in ODD:
            assert outcome(given, place, value, given) == "kept", (place, value)


@pytest.mark.parametrize("given", WRITTEN, ids=lambda each: each.title)
def test_null_is_kept_and_read_as_missing(given):
    for place in NULLS[given.title]:
        assert outcome(given, place, None, given) in ("kept", "changed"), place
        assert outcome(given, place, None, given) == "kept" or "metrics" in place, place


@pytest.mark.parametrize("given", WRITTEN, ids=lambda each: each.title)
def test_facts_come_back_as_they_were_given(given):
    for place, values in NUMBERS[given.title].items():
        for value in values:
            assert outcome(given, place, value, given) == "kept", (place, value)


@pytest.mark.parametrize("given", WRITTEN, ids=lambda each: each.title)
def test_records_of_two_runs_in_one_file_come_back(given):
    places = [
        place
        for place in given.fields
        if " " not in place and outcome(given, place, given.fields[place], given) == "kept"
    ]
    records = [given.with_field(place, given.fields[place]) for place in places]
    both = there_and_back(given, [*records, *records[::-1]])
    alone = [there_and_back(given, [record])[0] for record in records]
    assert both == [*alone, *alone[::-1]]


@pytest.mark.parametrize("given", WRITTEN, ids=lambda each: each.title)
def test_groups_of_two_batches_stay_separate_in_a_round_trip(given):
    one = given.read([given.record])
    joined = arl.Batch.concat([one, given.read([given.record])])
    back = given.read(given.write(joined))
    assert len(set(joined.keys("group_id", "draw").tolist())) == 2
    if given is not CHATS:  # whose record names no task: two records are two tasks
        assert len(set(back.keys("task_id", "draw").tolist())) == 1
    assert len(set(back.keys("group_id", "draw").tolist())) == 2


def test_equal_names_of_groups_of_two_tasks_are_two_groups():
    chats = [{**CHATS.record, "task": task, "group": "0", "reward": reward} for task, reward in (("a", 0), ("b", 1))]
    batch = CHATS.read(chats)
    assert batch.keys("group_id", "draw").tolist() == [0, 1]
    assert there_and_back(CHATS, chats) == chats


def test_untrained_answers_stay_untrained_in_another_format():
    """ATIF's copied context and fixed steps are answers of weight 0 in a chat."""
    [chat] = CHATS.write(ATIF.read([ATIF.record]))
    answers = [message for message in chat["messages"] if message["role"] == "assistant"]
    assert [message.get("weight", 1) for message in answers] == [1, 0, 0]
    [weighted] = ATIF.write(CHATS.read([CHATS.with_field("messages.1.weight", 0)]))
    batch = ATIF.read([weighted])
    assert batch.column("trainable", "token").any()
    assert not batch.column("trainable", "token").all()


@pytest.mark.parametrize(
    ("given", "record", "error", "match"),
    [
        (CHATS, {**CHATS.record, "reward": "1.0"}, InvalidInputError, "chat 1: reward is '1.0'; give a number"),
        (CHATS, {**CHATS.record, "success": "yes"}, InvalidInputError, "chat 1: success is 'yes'; give true or false"),
        (
            CHATS,
            {**CHATS.record, "step_rewards": [1]},
            InvalidInputError,
            "chat 1: step_rewards has 1 values; give 2 numbers",
        ),
        (CHATS, {**CHATS.record, "when": object()}, InvalidInputError, "chat 1: info cannot be saved as JSON"),
        (ATIF, None, InvalidInputError, "trajectory 1 is None"),
        (ATIF, ATIF.with_field("steps.0.source", "environment"), InvalidInputError, "trajectory 1, step 1: source is"),
        (
            ATIF,
            ATIF.with_field("steps.1.tool_calls", [{}]),
            InvalidInputError,
            r"trajectory 1, step 2, tool_calls\[0\]: function_name is None",
        ),
        (ATIF, ATIF.with_field("steps.1.tool_calls", "x"), InvalidInputError, "step 2: tool_calls is 'x'"),
        (ATIF, ATIF.with_field("steps.1.observation", []), InvalidInputError, "no list"),
        (ATIF, ATIF.with_field("steps.1.metrics.logprobs", [0.0]), InvalidInputError, "logprobs has 1 values for 2"),
        (ATIF, ATIF.with_field("steps", "x"), InvalidInputError, "trajectory 1: steps is 'x'"),
        (ATIF, ATIF.with_field("steps.1.llm_call_count", 2), UnsupportedError, "llm_call_count is 2"),
        (ATIF, ATIF.with_field("steps.1.llm_call_count", "2"), InvalidInputError, "llm_call_count is '2'"),
        (ATIF, ATIF.with_field("steps.1.metrics", []), InvalidInputError, "trajectory 1, step 2: metrics is"),
        (
            ATIF,
            ATIF.with_field("steps.1.metrics.prompt_token_ids", [1.5]),
            InvalidInputError,
            "trajectory 1: the context",
        ),
        (ATIF, ATIF.with_field("steps.1.metrics.prompt_token_ids", [2**40]), InvalidInputError, "whole numbers from 0"),
        (
            ATIF,
            ATIF.with_field("steps.1.message", [{"type": "text"}]),
            UnsupportedError,
            r"step 2: message\[0\] is ",
        ),
        (ATIF, ATIF.with_field("steps", []), InvalidInputError, "trajectory 1 .* has no turn"),
        (VERIFIERS, None, InvalidInputError, "trace 1 is None"),
        (VERIFIERS, VERIFIERS.with_field("rewards.right", 1.0), InvalidInputError, "trace 1: reward 'right' is 1.0"),
        (VERIFIERS, VERIFIERS.with_field("rewards.right.score", "x"), InvalidInputError, "trace 1: reward 'right'"),
        (VERIFIERS, VERIFIERS.with_field("nodes.1.parent", 7), InvalidInputError, "node 1 of trace 1 has the parent 7"),
        (VERIFIERS, VERIFIERS.with_field("nodes.0", {}), InvalidInputError, r"trace 1: nodes\[0\]\.message is None"),
    ],
)
def test_a_record_of_another_shape_is_named(given, record, error, match):
    if match == "no list":
        assert given.read([record])  # an empty observation is dropped
        return
    with pytest.raises(error, match=match):
        given.read([given.record, record])
