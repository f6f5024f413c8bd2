"""Sessions of agents: find the turn that a request continues, send its tokens to the upstream, record the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from agentrl_core.agents.answer_suffix import TemplateSuffix
from agentrl_core.agents.conversations import SessionConversations
from agentrl_core.agents.history_digest import HistoryDigests, Json, digests
from agentrl_core.agents.recorder import SessionRecorder
from agentrl_core.agents.records import SessionRecord
from agentrl_core.agents.request_deduplication import IsGone, RequestDeduplicator
from agentrl_core.agents.upstream import ChatResponse, ResponseChoice, Upstream
from agentrl_core.env.image import images_in


class Session:
    """One episode of an agent: its requests are recorded as turns with the tokens that the engine read.

    A request continues the last recorded answer that is unchanged in its history (`history_digest.digests` defines
    which changes count). Its prompt is then the tokens of that turn followed by the template's tokens of the later
    messages, so the model reads exactly what it generated, including reasoning, however the client sends it back. If
    an agent edits its history, the trajectory branches before the edit. If the history has no recorded answer, the
    engine renders it. `conversations.SessionConversations` decides which conversation, and so which trajectory, a
    request belongs to.

    Args:
        recorded: record of the session.
        recorder: writes the record.
        upstream: generates answers.
        template: finds the tokens between answers, for the upstream's model.
    """

    def __init__(
        self, recorded: SessionRecord, recorder: SessionRecorder, upstream: Upstream, template: TemplateSuffix
    ) -> None:
        self.recorded = recorded
        self._recorder = recorder
        self._upstream = upstream
        self._template = template
        self._turns: dict[str, int] = {turn.chat: turn.number for turn in recorded.turns if turn.chat}
        """The turn whose answer is the last message of a chat, by the chat's digest."""
        self.histories: dict[str, list[Json]] = {}
        """Items of conversations, by the id of the response that ends them."""
        self._repeats = RequestDeduplicator(self._before)
        self._chats = HistoryDigests()
        self._lanes = SessionConversations.of((turn.lane, turn.chat, turn.opening) for turn in recorded.turns)

    async def chat(self, request: Json, version: int, *, key: str, retry: bool, is_gone: IsGone) -> ChatResponse:
        """Return the upstream's answer to a chat, and record the turn.

        Args:
            request: request to `/v1/chat/completions`.
            version: version of the weights that generate the answer.
            key: digest of the request as received.
            retry: whether the client marks the request as repeated; it then gets the earlier answer.
            is_gone: returns whether the client has disconnected. If it has, the next equal request gets the same
                answer, since it is likely from the same client.
        """
        self.recorded.check_open()
        return await self._repeats.once(key, request, lambda: self._answer(request, version, key), is_gone, retry=retry)

    async def complete(self, request: Json, version: int, *, key: str, retry: bool, is_gone: IsGone) -> ChatResponse:
        """Return the upstream's answer to `/v1/completions`, and record the turn; arguments are those of `chat`."""

        async def answer() -> tuple[ChatResponse, int, list[str]]:
            response = await self._upstream.complete(request)
            return response, -1, [""] * len(response.choices)

        async def generate() -> ChatResponse:
            return await self._kept(request, version, key, ["completions"], answer)

        self.recorded.check_open()
        return await self._repeats.once(key, request, generate, is_gone, retry=retry)

    async def count(self, request: Json) -> int:
        """Count the tokens that a chat's prompt would have as the next request of this session."""
        messages, tools = request["messages"], request.get("tools")
        options = request.get("chat_template_kwargs")
        _, tokens = await self._near(digests(messages, [tools, options]), messages, tools, options)
        if tokens is None:
            tokens = await self._upstream.tokenize(messages, tools, options, open_turn=True)
        return len(tokens)

    def _before(self, key: str, request: Json) -> ChatResponse | None:
        """Return the last recorded answer to a request; None if there is none."""
        turns = [turn for turn in self.recorded.turns if turn.asked == key][-int(request.get("n", 1)) :]
        if not turns:
            return None
        prompt = self.recorded.context(turns[0].number).tolist()
        sampled = sum(len(turn.output) for turn in turns)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": sampled, "total_tokens": len(prompt) + sampled}
        choices = [
            ResponseChoice(turn.message, turn.output.tolist(), turn.logprobs.tolist(), turn.finish_reason, turn.details)
            for turn in turns
        ]
        return ChatResponse(prompt, choices, usage)

    async def _answer(self, request: Json, version: int, key: str) -> ChatResponse:
        messages, tools = request["messages"], request.get("tools")
        options = request.get("chat_template_kwargs")
        chain = self._chats.digests(messages, [tools, options])

        async def generate() -> tuple[ChatResponse, int, list[str]]:
            near, tokens = await self._near(chain, messages, tools, options)
            answer = await self._upstream.chat(request, tokens)
            replies = [choice.message | {"role": "assistant"} for choice in answer.choices]
            return answer, near, [digests([*messages, message], None, chain)[-1] for message in replies]

        return await self._kept(request, version, key, chain, generate)

    async def _near(
        self, chain: Sequence[str], messages: Sequence[Json], tools: Sequence[Json] | None, options: Json | None
    ) -> tuple[int, list[int] | None]:
        """Return the turn that a chat continues, and its prompt tokens; -1 and None if the engine must render it."""
        for place in range(len(messages) - 2, -1, -1):
            turn = self._turns.get(chain[place])
            if turn is None or messages[place].get("role") != "assistant":
                continue
            path = self.recorded.path(turn)
            added = await self._template.tokens_after(
                messages[: place + 1], messages[place + 1 :], tools, options, int(path[-1])
            )
            return (-1, None) if added is None else (turn, [*path.tolist(), *added])
        return -1, None

    async def _kept(
        self,
        request: Json,
        version: int,
        key: str,
        chain: Sequence[str],
        generate: Callable[[], Awaitable[tuple[ChatResponse, int, list[str]]]],
    ) -> ChatResponse:
        """Call `generate` and record its choices: the first in the request's conversation, others in new ones."""
        place = self._lanes.begin(chain)
        try:
            answer, near, chats = await generate()
            lanes = [place.conversation, *(self._lanes.another(chain[0]) for _ in chats[1:])]
            openings = [chain[0] if place.is_new else "", *(chain[0] for _ in chats[1:])]
            positions = list(zip(lanes, chats, openings, strict=True))
            images = images_in(request.get("messages") or ())
            turns = self._recorder.turn(
                self.recorded, answer, request, version, images=images, near=near, positions=positions, key=key
            )
        except BaseException:
            self._lanes.give_up(place.conversation)
            raise
        for turn in turns:
            self._lanes.end(turn.lane, turn.chat)
            if turn.chat:
                self._turns[turn.chat] = turn.number
        return answer
