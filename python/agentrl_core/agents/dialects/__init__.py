"""Translate the APIs that clients use to `/v1/chat/completions` and back: one file for each API.

A dialect has `FIELDS`, the rule that validates a body; `parse_request(body)`, which converts a body to a request to
`/v1/chat/completions`; `reply(answer, body, name)`, which converts the answer to a reply for the client; and
`events(reply, body)`, which yields that reply as server-sent events. Events are made from the whole answer; tokens are
never assembled from a stream.
"""
