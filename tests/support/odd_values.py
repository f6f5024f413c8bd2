"""Values of every type of JSON and some that are not JSON, and an endpoint that receives them."""

from __future__ import annotations

import json

from tool_agents import endpoint


def deep(levels):
    nested = 1
    for level in range(levels):
        nested = [nested] if level % 2 else {"a": nested}
    return nested


ODD = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.5,
    -0.0,
    1e39,
    1e300,
    10**30,
    10**400,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    "x",
    "array",
    "\ud800",
    [],
    [None],
    [1],
    ["x"],
    [[]],
    {},
    {"a": None},
    {"type": "text"},
    {"\udfff": 1},
    deep(70),
    deep(200),
]
"""Values of every type of JSON, and some that are not JSON."""


def served_with(store=None, **options):
    return endpoint(lambda request: f"answer {request.seed}", store=store, **options)


async def post(agent, path, body):
    """Send JSON as Python writes it, including NaN and lone surrogates."""
    return await agent.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


def committed(served, store):
    """Close the open session and commit it, then restart and repeat; return the stored sampled tokens."""
    for name, session in list(served._recorder.sessions.items()):
        if session.closed is None:
            served.close(name, reward=1.0)
    batch = served.commit()
    assert served.excluded() == []
    assert store.verify() == []
    return None if batch is None else batch.column("token", "token").size
