"""Edits of a branch: fork, splice, another prompt, rollback and rewrite.

Each function is a method of `Branch`, which imports this file; so branches are typed `Any`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from agentrl_core.env.base import Content
from agentrl_core.env.image import images_in
from agentrl_core.env.runtime.result_checks import checked_content
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.multi_agent import AgentView, SharedEpisode
from agentrl_core.rollout.runtime import RunningEpisode
from agentrl_core.rollout.token_path import Position, TokenPath
from agentrl_core.rollout.turn import Turn


def fork(
    branch: Any,
    at: Position | None,
    *,
    episode: Literal["copy", "keep"],
    train_prefix: bool,
    facts: Mapping[str, Any] | None,
    score: float | None,
) -> Any:
    """Fork a branch, with its peers; see `Branch.fork`."""
    _check_one_conversation(branch, "forked")
    branch.path.flush()
    place = branch.end if at is None else at
    if place.node is None and place.tokens < branch.path.length:
        raise InvalidInputError(
            f"branch {branch.name} cannot be forked at token {place.tokens}, because a rewrite removed tokens before "
            "that position; fork the branch at the end of a later turn"
        )
    acted = _acted_before(branch, place)
    ordinal = _next_ordinal(branch, place.tokens)
    name = f"{branch.name}.{place.tokens}.{ordinal}"
    match = branch.episode.match.copy(acted, name) if isinstance(branch.episode, AgentView) else None
    child_episode = branch.episode if episode == "keep" or match is not None else branch.episode.copy(acted)
    handle = branch._runtime.forest.fork(
        branch.handle, node=place.node, end=place.end, ordinal=ordinal, train_prefix=train_prefix
    )
    path = branch.path.copy(handle, place, name, _begin_at(branch, place))
    path.acted[-1] = acted if match is not None else len(child_episode.answers)
    child = _child(branch, path, place.tokens, ordinal, child_episode)
    child.turns, child.record = branch.turns[: place.turns], branch.record.first_turns(place.turns)
    child.record.begin(facts)
    branch.group.on_fork(branch, child, place, score)
    if match is not None:
        _fork_peers(branch, match, child, acted, facts or {}, train_prefix=train_prefix)
    return child


def _fork_peers(
    branch: Any, match: SharedEpisode, child: Any, acted: int, facts: Mapping[str, Any], *, train_prefix: bool
) -> None:
    """Fork the peers of a branch too, in their state after `acted` joint moves."""
    for peer in branch.episode.match.branches:
        if peer.over and peer is not branch and not match.is_active(peer.agent):
            continue
        forked = child if peer is branch else _fork_peer(peer, acted, child, train_prefix=train_prefix)
        forked.record.begin(facts)
        forked.episode = AgentView(match, forked.agent)
        match.branches.append(forked)
        for answer in match.results_of_other_moves(forked.agent):
            forked.record.add_reward_and_facts(answer.outcome)


def _fork_peer(branch: Any, acted: int, first: Any, *, train_prefix: bool) -> Any:
    """Fork a peer's branch after `acted` joint moves, in the episode of `first`, with the observations it got since."""
    turns = sum(each is not None and each <= acted for each in branch.path.acted[1:])
    place = branch.path.closing(turns)
    tokens = 0 if place is None else place.tokens
    ordinal = _next_ordinal(branch, tokens)
    forest, name = branch._runtime.forest, f"{branch.name}.{tokens}.{ordinal}"
    if place is None:
        node = branch.path.first
        handle = forest.fork(
            branch.handle, node=node, end=None if node is None else 0, ordinal=ordinal, episode=first.handle
        )
        path = branch.path.new_path(handle, name)
    else:
        handle = forest.fork(
            branch.handle,
            node=place.node,
            end=place.end,
            ordinal=ordinal,
            train_prefix=train_prefix,
            episode=first.handle,
        )
        path = branch.path.copy(handle, place, name)
        path.set_answers(turns, branch.episode.match.results_of(branch.agent, path.acted[-1] - 1, acted))
    child = _child(branch, path, tokens, ordinal, branch.episode)
    child.turns, child.record = branch.turns[:turns], branch.record.first_turns(turns)
    branch.group.on_fork(branch, child, place, None)
    return child


def splice(branch: Any, suffix: Any, start: Position, at: Position | None) -> Any:
    """Join the prefix of a branch and the suffix of another one; see `Branch.splice`."""
    _check_one_conversation(branch, "spliced")
    place = branch.end if at is None else at
    begin = _begin_at(suffix, start)
    if suffix.has_open_action or (begin is not None and begin.tokens < start.tokens):
        remedy = (
            f"start={start.tokens} is inside an action of branch {suffix.name}; give turn.begin of one of its turns"
        )
        if suffix.has_open_action:
            remedy = f"branch {suffix.name} has an open action; submit it first"
        raise InvalidInputError(f"branch {branch.name}: splice needs whole turns, but {remedy}")
    if isinstance(suffix.episode, AgentView):
        raise InvalidInputError(
            f"splice: branch {suffix.name} plays a multi-agent episode, which cannot be spliced; fork it"
        )
    branch.path.flush()
    ordinal = _next_ordinal(branch, place.tokens)
    node, first = suffix.path.node_after(start.tokens)
    handle = branch._runtime.forest.splice(
        branch.handle, suffix.handle, from_node=node, start=first, node=place.node, end=place.end
    )
    path = branch.path.copy(handle, place, f"{branch.name}.{place.tokens}.{ordinal}")
    path.append_suffix(suffix.path, start, branch.group.number)
    child = _child(branch, path, place.tokens, ordinal, suffix.episode.copy(len(suffix.episode.answers)))
    child.turns, child.record = branch.turns[: place.turns], branch.record.first_turns(place.turns)
    child.record.append_turns(suffix.record, start.turns)
    branch.group.on_fork(branch, child, place, None, operation="splice")
    _take_turns(child, suffix, start.turns, place.tokens - start.tokens)
    return child


def with_prompt(branch: Any, prompt: Content | None) -> Any:
    """Replace a branch with the same actions after another prompt; see `Branch.with_prompt`."""
    _check_one_conversation(branch, "given another prompt")
    if branch.has_open_action or not branch.turns:
        problem = "it has no turn; await a turn first"
        if branch.has_open_action:
            problem = "an action is open; submit that action first"
        raise InvalidInputError(f"branch {branch.name}: with_prompt needs answered turns, but {problem}")
    branch.path.flush()
    runtime, ordinal, tools = branch._runtime, _next_ordinal(branch, 0), branch.episode.tools
    content = branch.episode.observation if prompt is None else checked_content(prompt, "with_prompt: prompt")
    chat = runtime.chat(branch.agent)
    tokens = chat.prompt(content, tools=tools) if tools else chat.prompt(content)
    images = images_in(content)
    handle = runtime.forest.with_prompt(branch.handle, tokens, blobs=branch.path.blobs(images))
    path = TokenPath(f"{branch.name}.0.{ordinal}", runtime.forest, chat, handle)
    begin = branch.turns[0].begin
    path.init_with_prompt(len(tokens), images, branch.path, begin, branch.group.number)
    child = _child(branch, path, 0, ordinal, branch.episode)
    child.record = branch.record.whole()
    branch.group.on_fork(branch, child, None, None, operation="replace")
    _take_turns(child, branch, 0, len(tokens) - begin.tokens)
    runtime.forest.replace(branch.handle, by=handle)
    if not branch.over:
        branch._leave("pruned")
    branch.status = "pruned"
    if isinstance(branch.episode, AgentView):
        match = branch.episode.match
        match.branches[match.branches.index(branch)] = child
    return child


def rollback(branch: Any, to: Position, *, episode: Literal["copy", "keep"]) -> None:
    """Continue a branch from an earlier position; see `Branch.rollback`."""
    _check_one_conversation(branch, "rolled back")
    branch.path.flush()
    before, runtime = branch.episode, branch._runtime
    if isinstance(before, AgentView) and episode == "copy":
        raise InvalidInputError(
            f"branch {branch.name} plays a multi-agent episode, which cannot be rolled back for one agent; fork the "
            f"branch, and stop {branch.name} and its peers, or use episode='keep'"
        )
    new_episode = before if episode == "keep" else before.copy(_acted_before(branch, to))
    branch.group.log_decision("rollback", branch, to)
    handle = runtime.forest.rollback(branch.handle, cast("int", to.node), to.end)
    if new_episode is not before:
        branch.episode = new_episode
        before.close()
    branch._count_tokens()
    branch.path = branch.path.copy(handle, to, branch.name, _begin_at(branch, to))
    runtime.progress.grew(to.tokens, shared=True)
    branch.path.acted[-1] = len(new_episode.answers)
    branch.turns, branch.record = branch.turns[: to.turns], branch.record.first_turns(to.turns)


def rewrite(branch: Any, context: Sequence[Content | Turn]) -> None:
    """Change the context of a branch from here on; see `Branch.rewrite`."""
    runtime, path = branch._runtime, branch.path
    items = [item.index if isinstance(item, Turn) else item for item in context]
    tokens, begins, shown = path.context(items, branch.episode.tools)
    # The images of a message are shared together, so their start is enough.
    images = [(begin, blob) for begin, _, images in shown for blob in path.blobs(images)]
    shared = runtime.forest.rewrite(branch.handle, tokens, images=images, state=branch.state_key)
    runtime.progress.grew(shared, shared=True)
    runtime.progress.grew(len(tokens) - shared, shared=False)
    tip = path.tip(branch.group.number) if shared < len(tokens) else None
    path.rewritten(len(tokens), begins, shown, tip)
    branch.group.log_decision("replace", branch, path.here)


def truncate(branch: Any, reason: str) -> None:
    """End a branch in its current state, as truncated with unknown success; a later iteration may continue it."""
    if branch.over:
        return
    forest = branch._runtime.forest
    if branch.path.open:
        facts = branch._engine_facts("step")
        branch.path.flush()
        forest.step(branch.handle, truncated=True, facts=facts)
    branch._leave("truncated")
    ended = {**branch.record.ended("truncated", reason), "success": None}
    forest.finish(branch.handle, status="truncated", **ended)
    branch.episode.close()


def _child(branch: Any, path: TokenPath, tokens: int, ordinal: int, episode: RunningEpisode) -> Any:
    """Create a branch derived from another one after `tokens` tokens."""
    return type(branch)(
        branch._runtime,
        branch.group,
        (*branch.key, tokens, ordinal),
        path,
        episode,
        agent=branch.agent,
        seed=branch.seed,
        role=branch.role,
        parent=branch,
        sampling=branch._sampling,
        content=branch._content,
    )


def _acted_before(branch: Any, place: Position) -> int:
    """Return the number of actions that the episode of a branch had answered before a position of its path."""
    acted: list[int | None] = branch.path.acted
    if place.turns < branch.path.turns and (then := acted[place.turns + 1]) is not None:
        return then - 1
    before = acted[place.turns]
    if before is None:
        raise InvalidInputError(
            f"branch {branch.name}: tokens before token {place.tokens} are from another branch, so the episode of "
            f"{branch.name} cannot be replayed to that position; fork the other branch there"
        )
    return len(branch.episode.answers) if isinstance(branch.episode, AgentView) else before


def _next_ordinal(branch: Any, tokens: int) -> int:
    """Return the number of the next fork of a branch after `tokens` tokens."""
    ordinal: int = branch._forks.get(tokens, -1) + 1
    branch._forks[tokens] = ordinal
    return ordinal


def _check_one_conversation(branch: Any, what: str) -> None:
    conversations = branch._conversations
    if conversations is not None and len(conversations.paths) > 1:
        raise InvalidInputError(
            f"branch {branch.name} has {len(conversations.paths)} conversations, so it cannot be {what}; use a rollout "
            "that only awaits turns, such as Independent"
        )


def _begin_at(branch: Any, place: Position) -> Position | None:
    """Return the start of the action in which a position lies, if it may split that action; otherwise None."""
    begin: Position | None
    if place.turns < len(branch.turns):
        begin = branch.turns[place.turns].begin
    else:
        begin = branch.path.here if branch.path.open else None
    return begin


def _take_turns(branch: Any, other: Any, first: int, shift: int) -> None:
    """Append the turns of another branch from number `first` on, shifted by `shift` tokens, and end like it."""
    for turn in other.turns[first:]:
        number = len(branch.turns)
        begin = replace(branch.path.position(turn.begin.tokens + shift, number), follows_tool=turn.begin.follows_tool)
        branch.path.spans[number] = (begin.tokens, begin.tokens + turn.length)
        branch.turns.append(replace(turn, branch_ref=branch._reference, index=number, begin=begin))
    if other.status in ("finished", "truncated"):
        branch._end(other.status)
