"""Dumps of rollouts: slime's have token ids and masks, verl's have texts without special tokens."""

import json

import numpy as np
import pytest
import torch
from chat_gallery import gallery_tokenizer
from read_files import check_trained, trained, write_lines

from agentrl_core.engine.chat_template import ChatTemplate
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import from_chats, read


def sample(index, tokens, length, **more):
    """Return the result of slime's `Sample.to_dict`."""
    return {
        "group_index": index // 2,
        "index": index,
        "rollout_id": None,
        "prompt": [{"role": "user", "content": "how warm?"}],
        "tokens": tokens,
        "multimodal_inputs": None,
        "response": "Cold.",
        "response_length": length,
        "label": "Cold",
        "reward": float(index % 2),
        "loss_mask": None,
        "weight_versions": ["3"],
        "rollout_log_probs": None,
        "remove_sample": False,
        "status": "completed",
        "metadata": {},
        "spec_info": {},
        **more,
    }


def test_samples_of_slime(tmp_path):
    samples = [
        sample(0, [1, 2, 3, 4], 2, rollout_log_probs=[-0.5, -0.25]),
        sample(1, torch.tensor([1, 2, 5, 6, 7]), 3, loss_mask=torch.tensor([1, 0, 1]), status="truncated"),
        sample(2, [1, 2, 8], 1, remove_sample=True),
        sample(3, [1, 2, 9], 1, loss_mask=[0], reward={"right": 1.0}),
    ]
    torch.save({"rollout_id": 7, "samples": samples}, tmp_path / "7.pt")
    rows = list(read(tmp_path / "7.pt"))
    assert [row["task"] for row in rows] == ["7/0", "7/0", "7/1", "7/1"]
    assert rows[1]["record"]["status"] == "truncated"
    assert (rows[3].get("reward"), rows[3]["record"]["reward"]) == (None, {"right": 1.0})
    batch = from_chats(rows)
    assert batch.num_groups == 2
    assert batch.column("token", "token").tolist() == [3, 4, 5, 7, 8, 9]
    assert batch.column("trainable", "token").tolist() == [True] * 4 + [False] * 2
    assert batch.column("reward", "draw").tolist()[:3] == [0.0, 1.0, 0.0]
    logprobs = batch.column("behaviour_logprob", "token")
    assert logprobs[:2].tolist() == [-0.5, -0.25]
    assert np.isnan(logprobs[2:]).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tokens": None}, InvalidInputError, "7.pt, sample 0 has no tokens"),
        ({"response_length": 0}, InvalidInputError, "response_length is 0 for 4 tokens"),
        ({"response_length": 4}, InvalidInputError, "response_length is 4 for 4 tokens"),
        ({"multimodal_inputs": {"images": ["a"]}}, UnsupportedError, "it has images"),
        ({"loss_mask": [1]}, InvalidInputError, "loss_mask has 1 values for 2 tokens"),
        ({"rollout_log_probs": [-0.5]}, InvalidInputError, r"logprobs has shape \(1,\) for .* 2 of them trained"),
    ],
)
def test_samples_that_do_not_fit_are_refused(change, error, message, tmp_path):
    torch.save({"rollout_id": 7, "samples": [sample(0, [1, 2, 3, 4], 2) | change]}, tmp_path / "7.pt")
    with pytest.raises(error, match=message):
        from_chats(read(tmp_path / "7.pt", "slime"))


QUESTION = {"role": "user", "content": "how warm is it?"}
SYSTEM = {"role": "system", "content": "Be brief.\nBe kind."}


def dumped(tokenizer, messages, completion, **more):
    """Return a line of verl's dump: prompt and response decoded without special tokens."""
    prompt = ChatTemplate(tokenizer).render(messages, open_turn=True)
    decoded = tokenizer.decode(tokenizer(prompt, add_special_tokens=False)["input_ids"], skip_special_tokens=True)
    return {"input": decoded, "output": completion, "gts": "4", "score": 1.0, "step": 5, "acc": True, **more}, prompt


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3", "llama3", "gemma3", "nemotron_3_nano"])
@pytest.mark.parametrize("messages", [[QUESTION], [SYSTEM, QUESTION]])
def test_a_dump_of_verl_gets_its_special_tokens_back(template, messages, tmp_path):
    tokenizer = gallery_tokenizer(template)
    row, prompt = dumped(tokenizer, messages, "It is cold.")
    path = write_lines(tmp_path / "5.jsonl", [row, {**row, "output": "It is warm.", "score": 0.0}], "\r\n")
    rows = list(read(path))
    batch = from_chats(rows, tokenizer)
    contexts = batch.contexts()
    assert tokenizer.decode(contexts.tokens[: int(contexts.begins[0])].tolist()) == prompt
    assert trained(rows, tokenizer) == (["It is cold.", "It is warm."], [])
    assert batch.num_groups == 1
    assert batch.column("reward", "draw").tolist() == [1.0, 0.0]
    assert rows[0]["record"]["acc"] is True


def test_roles_that_leave_no_text_are_ambiguous():
    """GLM marks roles by special tokens alone: a newline may be between two messages, or in one."""
    tokenizer = gallery_tokenizer("glm4moe")
    row, prompt = dumped(tokenizer, [QUESTION], "It is cold.")
    contexts = from_chats(read([row]), tokenizer).contexts()
    assert tokenizer.decode(contexts.tokens[: int(contexts.begins[0])].tolist()) == prompt
    row, _ = dumped(tokenizer, [SYSTEM, QUESTION], "It is cold.")
    with pytest.raises(UnsupportedError, match="but several chats render to it"):
        from_chats(read([row]), tokenizer)


def test_a_dump_that_cannot_be_verified_is_refused():
    tokenizer = gallery_tokenizer("qwen2_5")
    row, _ = dumped(tokenizer, [QUESTION], "It is cold.")
    with pytest.raises(UnsupportedError, match=r"prompt is .*, but no chat with one user message renders to it"):
        from_chats(read([row]), gallery_tokenizer("gemma3"))
    several, _ = dumped(tokenizer, [QUESTION, {"role": "assistant", "content": "Cold."}, QUESTION], "It is cold.")
    with pytest.raises(UnsupportedError, match=r"chat 0: prompt is .*, but several chats render to it"):
        from_chats(read([several]), tokenizer)
    with pytest.raises(UnsupportedError, match="completion has several turns"):
        from_chats(read([{**row, "output": "I look.\nuser\n4 degrees\nassistant\nCold."}]), tokenizer)
    with pytest.raises(InvalidInputError, match="the completion is empty"):
        from_chats(read([{**row, "output": ""}]), tokenizer)
    with pytest.raises(InvalidInputError, match="record 0 lacks a text 'input' or 'output'"):
        list(read([{**row, "output": None}]))
    with pytest.raises(InvalidInputError, match="give tokenizer="):
        from_chats(read([row]))


def test_chats_and_texts_in_parts(tmp_path):
    parts = [{"type": "text", "text": "how"}, {"type": "text", "text": "warm?"}]
    chat = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": parts[:1]}]}
    check_trained(write_lines(tmp_path / "a.jsonl", [chat]), [{"role": "assistant", "content": "how"}])


def rebuilt_sample(chat):
    """Rebuild a sample of slime from the parts that were read of it."""
    [turn] = chat["turns"]
    return {
        **chat["record"],
        "tokens": turn["prompt_token_ids"] + turn["completion_token_ids"],
        "loss_mask": turn["loss_mask"],
        "rollout_log_probs": turn["logprobs"],
        **({"rollout_routed_experts": turn["routed_experts"]} if "routed_experts" in turn else {}),
    }


OURS = {
    "messages": [{"role": "assistant", "content": "no"}],
    "tools": "all",
    "task": "another",
    "group": "another",
    "success": "maybe",
    "step_rewards": [1, 2, 3],
    "turns": [{"text": "no"}],
    "input_ids": [5],
    "labels": [5],
    "weight": 0,
    "untrained": "never",
    "left_out": None,
    "record": {"a": 0},
    "chat_template_kwargs": {"enable_thinking": False},
    "decoded_prompt": "no",
    "": [],
}
"""Fields of a foreign record with the names of ours, but other meanings."""


def test_fields_of_slime_with_names_of_ours_mean_nothing_here():
    record = {**sample(0, [1, 2, 3, 4], 2, loss_mask=[1, 1], rollout_log_probs=[-0.5, -0.25]), **OURS}
    record["metadata"] = {"scores": np.arange(2), "nested": [torch.tensor([1.5])]}
    [chat] = read([{"rollout_id": 7, "samples": [record]}], "slime")
    assert rebuilt_sample(chat) == {**record, "metadata": {"scores": [0, 1], "nested": [[1.5]]}}
    batch = from_chats([chat])
    assert batch.column("token", "token").tolist() == [3, 4]
    assert batch.texts("task_id", "draw") == ["7/0"]
    assert np.isnan(batch.column("success", "draw")).all()
    [info] = batch.trajectories.column("info")
    assert json.loads(info)["record"] == chat["record"]


def test_fields_of_verl_with_names_of_ours_mean_nothing_here():
    tokenizer = gallery_tokenizer("qwen2_5")
    row = {**dumped(tokenizer, [QUESTION], "It is cold.")[0], **OURS, "reward": "none"}
    rows = list(read([row, {**row, "success": True}], "verl"))
    batch = from_chats(rows, tokenizer)
    assert [chat["record"] for chat in rows] == [row, {**row, "success": True}]
    assert trained(rows, tokenizer) == (["It is cold."] * 2, [])
    assert batch.num_groups == 1
    assert np.isnan(batch.column("success", "draw")).all()
    assert batch.column("reward", "draw").tolist() == [1.0, 1.0]


def test_texts_beside_messages_are_not_trained():
    chat = {"messages": [QUESTION, {"role": "assistant", "content": "It is cold."}], "prompt": "a", "completion": "b"}
    tokenizer = gallery_tokenizer("qwen2_5")
    assert trained([chat], tokenizer) == (["It is cold.<|im_end|>"], [])


def test_all_fields_of_a_sample_of_slime_are_kept():
    sample = {
        "group_index": 0,
        "index": 3,
        "prompt": "hi",
        "tokens": [1, 2, 3, 4],
        "response": "yo",
        "response_length": 2,
        "reward": 0.5,
        "loss_mask": [1, 1],
        "rollout_log_probs": [-0.5, -0.25],
        "rollout_routed_experts": [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [9, 8]]],
        "teacher_log_probs": [-0.1, -0.2],
        "train_metadata": {"loss": "sft"},
        "weight_versions": ["7"],
        "status": "truncated",
        "metadata": {},
        "spec_info": {"spec_accept_token_num": 0},
        "non_generation_time": 0.0,
        "own": [False],
    }
    [chat] = read([{"rollout_id": 2, "samples": [sample]}])
    assert rebuilt_sample(chat) == sample
    assert "left_out" not in chat
    assert "untrained" not in chat
    batch = from_chats([chat])
    assert batch.column("routed_experts", "node_token").tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 9, 8],
        [255, 255, 255, 255],
    ]
    assert batch.column("routed_experts.known", "node_token").tolist() == [1, 1, 1, 0]
    [removed] = read([{**sample, "remove_sample": True}])
    assert removed["untrained"] == ["record 0, sample 0: remove_sample is set"]
    assert from_chats([removed]).column("trainable", "token").tolist() == [False, False]


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (np.zeros((2, 2, 2), np.int32), r"routed_experts has shape \(2, 2, 2\) for 4 tokens"),
        (np.zeros(12, np.int32), r"routed_experts has shape \(12,\) for 4 tokens"),
        (np.full((3, 2, 2), -1), "routed_experts has dtype .*; give whole numbers from 0 to 65535"),
        (np.zeros((3, 2, 2)), "routed_experts has dtype .*; give whole numbers from 0 to 65535"),
    ],
)
def test_experts_of_slime_that_do_not_fit_are_named(experts, message):
    sample = {"tokens": [1, 2, 3, 4], "response_length": 2, "rollout_routed_experts": experts}
    with pytest.raises(InvalidInputError, match=f"turn 0: {message}"):
        from_chats(list(read([sample])))


def test_experts_of_a_loss_mask_with_holes_belong_to_their_tokens():
    experts = np.arange(300, 310, dtype=np.int32).reshape(5, 1, 2)  # more than fit 8 bits
    sample = {"tokens": [1, 2, 3, 4, 5, 6], "response_length": 4, "loss_mask": [1, 0, 1, 0]}
    batch = from_chats(list(read([{**sample, "rollout_routed_experts": experts}])))
    assert batch.column("token", "node_token").tolist() == [1, 2, 3, 4, 5]
    routed = batch.column("routed_experts", "node_token")
    assert routed.dtype == np.uint16
    assert routed.tolist() == experts.reshape(5, 2).tolist()
