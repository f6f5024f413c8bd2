"""A session: which of its turns a request goes on from, what is sent for it, and what is a message sent twice."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl_core.agents.conversation import Json, digests
from agentrl_core.agents.recorder import Recorded, Recorder
from agentrl_core.agents.repeats import IsGone, Repeats
from agentrl_core.agents.template import Template
from agentrl_core.agents.upstream import Answer, Choice, Upstream
from agentrl_core.exceptions import InvalidInputError


class Session:
    """One episode of an agent: its requests are turns, recorded as the engine saw them.

    A request goes on from the last answer given here that is in its history, word for word (`conversation.digests` says
    what of a message counts). Its prompt is then the tokens of that turn and the template's tokens of what follows, so
    the model reads what it wrote, its reasoning too, however the client sends it back. Where the history was edited
    before that, it branches there; where it has no answer of ours, the engine renders it anew.

    Args:
        recorded: what is kept of it.
        recorder: keeps it.
        upstream: answers.
        template: of the upstream's model.
    """

    def __init__(self, recorded: Recorded, recorder: Recorder, upstream: Upstream, template: Template) -> None:
        self.recorded = recorded
        self._recorder = recorder
        self._upstream = upstream
        self._template = template
        self._turns: dict[str, int] = {turn.chat: turn.number for turn in recorded.turns if turn.chat}
        """The turn whose answer is the last message of a chat, by the chat's digest."""
        self.histories: dict[str, list[Json]] = {}
        """Items of conversations, by the response that ends them."""
        self._repeats = Repeats(self._before)

    async def chat(self, request: Json, version: int, *, path: str, retry: bool, is_gone: IsGone) -> Answer:
        """Answer a chat, and keep the turn.

        Args:
            request: to `/v1/chat/completions`.
            version: of the weights that answer.
            path: the door through which it came, and
            retry: whether the client says that it asks again: it gets the answer that was made, none is sampled.
            is_gone: whether the client has hung up. Who asks the same behind it gets its answer, for it is likely the
                same client.
        """
        self._check_open()
        answer = lambda key: self._answer(request, version, key)  # noqa: E731
        return await self._repeats.once(request, path, answer, is_gone, retry=retry)

    async def complete(self, request: Json, version: int, *, path: str, retry: bool, is_gone: IsGone) -> Answer:
        """Answer a request to `/v1/completions`, and keep the turn; the arguments are those of `chat`."""

        async def ask(asked: str) -> Answer:
            answer = await self._upstream.complete(request)
            self._keep(request, answer, version, near=-1, chats=[""] * len(answer.choices), asked=asked)
            return answer

        self._check_open()
        return await self._repeats.once(request, path, ask, is_gone, retry=retry)

    def _check_open(self) -> None:
        if self.recorded.closed is not None:
            raise InvalidInputError(f"session {self.recorded.session!r} is closed; open another one")

    def _before(self, key: str, request: Json) -> Answer | None:
        """The last answer to a request, from what was recorded; without details that a client may have asked for."""
        turns = [turn for turn in self.recorded.turns if turn.asked == key][-int(request.get("n", 1)) :]
        if not turns:
            return None
        prompt = self.recorded.context(turns[0].number).tolist()
        sampled = sum(len(turn.output) for turn in turns)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": sampled, "total_tokens": len(prompt) + sampled}
        choices = [
            Choice(turn.message, turn.output.tolist(), turn.logprobs.tolist(), turn.finish_reason) for turn in turns
        ]
        return Answer(prompt, choices, usage)

    async def _answer(self, request: Json, version: int, asked: str) -> Answer:
        messages, tools = request["messages"], request.get("tools")
        options = request.get("chat_template_kwargs")
        chain = digests(messages, [tools, options])
        near, tokens = -1, None
        for place in range(len(messages) - 2, -1, -1):
            turn = self._turns.get(chain[place])
            if turn is None or messages[place].get("role") != "assistant":
                continue
            path = self.recorded.path(turn)
            behind = await self._template.behind(
                messages[: place + 1], messages[place + 1 :], tools, options, int(path[-1])
            )
            if behind is not None:
                near, tokens = turn, [*path.tolist(), *behind]
            break
        answer = await self._upstream.chat(request, tokens)
        said = [choice.message | {"role": "assistant"} for choice in answer.choices]
        chats = [digests([*messages, message], [tools, options])[-1] for message in said]
        self._keep(request, answer, version, near=near, chats=chats, asked=asked)
        return answer

    def _keep(
        self, request: Json, answer: Answer, version: int, *, near: int, chats: Sequence[str], asked: str
    ) -> None:
        if self.recorded.closed is not None:
            raise InvalidInputError(f"session {self.recorded.session!r} was closed while it was answered")
        turns = self._recorder.turn(self.recorded, answer, request, version, near=near, chats=chats, asked=asked)
        self._turns.update((turn.chat, turn.number) for turn in turns if turn.chat)
