"""Prompt and completion, in the format of TRL's trainers."""

import pytest
from chat_gallery import gallery_tokenizer
from read_files import assistant, check_trained, trained, write_lines

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import from_chats, read

WARM = {"role": "user", "content": "how warm?"}
MORE = {"role": "user", "content": "And now?"}


def test_answers_in_the_prompt_are_context(tmp_path):
    row = {"prompt": [WARM, assistant("Hot."), MORE], "completion": [assistant("Cold.")], "source": "here"}
    [chat] = check_trained(write_lines(tmp_path / "a.jsonl", [row]), [assistant("Cold.")], [assistant("Hot.")])
    assert chat["source"] == "here"


def test_texts_are_tokenised_without_a_template_as_trl_does():
    tokenizer = gallery_tokenizer("llama3")
    rows = list(read([{"prompt": "The sky is", "completion": " blue."}]))
    assert trained(rows, tokenizer) == ([" blue." + tokenizer.eos_token], [])
    batch = from_chats(rows, tokenizer)
    contexts = batch.contexts()
    assert tokenizer.decode(contexts.tokens[: int(contexts.begins[0])].tolist()) == "The sky is"


def test_an_end_that_is_written_already_is_not_doubled():
    tokenizer = gallery_tokenizer("llama3")
    rows = list(read([{"prompt": "The sky is", "completion": " blue." + tokenizer.eos_token}]))
    assert trained(rows, tokenizer) == ([" blue." + tokenizer.eos_token], [])


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ({"prompt": "a", "completion": None, "response": None}, InvalidInputError, "record 0 has no completion"),
        ({"prompt": None, "completion": "a"}, InvalidInputError, "record 0 has no prompt"),
        ({"prompt": "a", "completion": ""}, InvalidInputError, "the completion is empty"),
        (
            {"prompt": "a", "completion": [assistant("b")]},
            InvalidInputError,
            "give two texts, or two lists of messages",
        ),
        ({"prompt": [], "completion": [assistant("b")]}, InvalidInputError, "give two texts, or two lists of messages"),
        ({"prompt": [WARM], "completion": [MORE]}, InvalidInputError, "no message of an assistant"),
        (
            {"prompt": [WARM, assistant("a")], "completion": [assistant("b")]},
            UnsupportedError,
            "its prompt ends with an answer",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, UnsupportedError, "it is a preference"),
        ({"chosen": [assistant("b")], "rejected": [assistant("c")]}, UnsupportedError, "it is a preference"),
    ],
)
def test_records_that_are_not_trajectories_are_refused(row, error, message):
    with pytest.raises(error, match=message):
        list(read([row]))


def test_texts_need_a_tokenizer():
    with pytest.raises(InvalidInputError, match="chat 0 has texts and no token ids; give tokenizer="):
        from_chats(read([{"prompt": "a", "completion": "b"}]))
