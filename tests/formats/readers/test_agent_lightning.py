"""Agent Lightning: spans of its tracers, events of its server."""

import pytest
from read_files import assistant, check_trained, write_json, write_lines

from agentrl_core.exceptions import UnsupportedError
from agentrl_core.integrations.trajectories import from_chats, read


def span(number, attributes, name="openai.chat.completion", rollout="ro-1", attempt="at-1", **more):
    return {
        "rollout_id": rollout,
        "attempt_id": attempt,
        "sequence_id": number,
        "trace_id": "t",
        "span_id": str(number),
        "parent_id": None,
        "name": name,
        "status": {"status_code": "OK", "description": None},
        "attributes": attributes,
        "events": [],
        "links": [],
        "start_time": 1.0,
        "end_time": 2.0,
        "resource": {"attributes": {}, "schema_url": ""},
        **more,
    }


def ids(prompt, response, **more):
    return {"prompt_token_ids": prompt, "response_token_ids": response, "gen_ai.request.model": "m", **more}


def reward(number, value, **more):
    values = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
    return span(number, values, "agentlightning.annotation", **more)


def test_token_ids_log_probs_and_rewards_of_spans(tmp_path):
    logprobs = '[{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]'
    rows = [
        reward(4, 1.0),
        span(1, ids([1, 2], [3, 4], **{"logprobs.content": logprobs})),
        reward(2, 0.25),
        span(3, ids([1, 2, 3, 4, 5], [6])),
        span(1, ids([1, 2], [7]), rollout="ro-2"),
    ]
    first, second = read(write_lines(tmp_path / "spans.jsonl", rows))
    assert first["turns"] == [
        {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "logprobs": [-0.5, -0.25]},
        {"prompt_token_ids": [1, 2, 3, 4, 5], "completion_token_ids": [6]},
    ]
    assert (first["task"], first["reward"], first["earlier_rewards"]) == ("ro-1", 1.0, [0.25])
    assert "reward" not in second
    batch = from_chats([first, second])
    assert batch.column("token", "token").tolist() == [3, 4, 6, 7]
    assert batch.column("reward", "draw").tolist()[0] == 1.0


def test_rewards_that_agentops_records(tmp_path):
    rows = [
        span(1, ids([1], [2])),
        span(2, {"agentops.task.output": '{"type": "reward", "value": 0.5}'}, "reward.task"),
    ]
    [row] = read(write_lines(tmp_path / "spans.jsonl", rows))
    assert row["reward"] == 0.5


@pytest.mark.parametrize(
    "names",
    [
        ("prompt_token_ids", "response_token_ids.0"),
        ("prompt_token_ids", "choices.0.token_ids"),
        ("prompt_token_ids", "choices.0.provider_specific_fields.token_ids"),
    ],
)
def test_token_ids_of_the_weave_tracer(names):
    values = {f"agentlightning.operation.output.{name}": ids for name, ids in zip(names, ([1], [2]), strict=True)}
    [row] = read([span(1, values)])
    assert row["turns"] == [{"prompt_token_ids": [1], "completion_token_ids": [2]}]


def test_spans_without_token_ids_are_chats(tmp_path):
    values = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "how warm?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "Cold.",
    }
    path = write_lines(tmp_path / "spans.jsonl", [span(1, values), reward(2, 1.0)])
    [chat] = check_trained(path, [assistant("Cold.")])
    assert (chat["reward"], chat["rollout_id"], chat["attempt_id"]) == (1.0, "ro-1", "at-1")
    mixed = [span(1, values), span(2, ids([1], [2]))]
    with pytest.raises(UnsupportedError, match="1 calls have token ids and 1 have texts alone"):
        list(read(mixed))


def event(kind, **data):
    return {"event_type": kind, "rollout_id": "ro-1", "attempt_id": "0", "timestamp": 1.0, "data": data}


MESSAGES = [{"role": "user", "content": "how warm?"}]


def response(ids=None, content="Cold.", finish="stop", **more):
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish, **more}
    if ids is not None:
        choice["token_ids"] = ids
    return {"choices": [choice]}


def test_events_of_the_server(tmp_path):
    logprobs = {"content": [{"token": "a", "logprob": -0.5}]}
    rows = [
        event("model_request", request={"messages": MESSAGES}, response=response(), status="error", http_status=500),
        event("model_request", response={"prompt_token_ids": [1, 2], **response([3], logprobs=logprobs)}, status="ok"),
        event("note", text="hm"),
        event("reward", value=1.0, source="judge"),
    ]
    [row] = read(write_json(tmp_path / "events.json", rows))
    assert row["turns"] == [{"prompt_token_ids": [1, 2], "completion_token_ids": [3], "logprobs": [-0.5]}]
    assert row["reward"] == 1.0


def test_events_in_the_form_of_triplets():
    data = {"prompt_token_ids": [1, 2], "response_token_ids": [3], "response_log_probs": [-0.5]}
    [row] = read([event("model_request", **data)])
    assert row["turns"] == [{"prompt_token_ids": [1, 2], "completion_token_ids": [3], "logprobs": [-0.5]}]


def test_events_without_token_ids_are_chats(tmp_path):
    more = [*MESSAGES, assistant("Cold."), {"role": "user", "content": "And now?"}]
    rows = [
        event("model_request", request={"messages": MESSAGES}, response=response()),
        event("model_request", request={"messages": more}, response=response(content="War", finish="length")),
    ]
    check_trained(write_json(tmp_path / "events.json", rows), [assistant("Cold.")], [assistant("War")])


def test_events_that_hold_nothing():
    with pytest.raises(UnsupportedError, match="record 0: the call of a model has neither token ids nor messages"):
        list(read([event("model_request", response={})]))
