"""Weights of messages, as in OpenAI's format for fine-tuning."""

from chat_templates import QUESTION, WITH_CALLS, answer, byte_tokenizer, read_or_reject, turn_texts


def test_message_of_weight_zero_is_not_trained_or_rejected():
    tokenizer = byte_tokenizer(WITH_CALLS)
    doubt = {"role": "user", "content": "Sure?"}
    chat = {"messages": [QUESTION, answer("Hot.", weight=0), doubt, answer("No, cold.", weight=1)]}
    batch = read_or_reject(chat, tokenizer)
    if batch is None:
        return
    masked = batch.has("trainable", "token") and not batch.column("trainable", "token")[0]
    assert masked or "Hot." not in "".join(turn_texts(batch, tokenizer))
