"""Translate the APIs that clients use to `/v1/chat/completions` and back: one file for each API.

A dialect has `FIELDS`, the rule of a body; `asked(body)`, the request to `/v1/chat/completions` that a body means;
`reply(answer, body, name)`, the client's reply; and `events(reply, body)`, the same reply as server-sent events, made
of the whole answer: tokens are never put together from a stream.
"""
