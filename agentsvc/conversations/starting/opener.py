"""The last step of a start: create the conversation at the agent server and check that it works."""

from functools import partial

from agentsvc.agentserver import ConversationInfo
from agentsvc.conversations.event_ingestor import event_time
from agentsvc.conversations.history_transfer import HistoryTransfer
from agentsvc.conversations.message_delivery import check_first_message
from agentsvc.conversations.replays import play
from agentsvc.conversations.starting.first_response import check_address, watch_first_answer
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.progress import Progress, timed
from agentsvc.conversations.starting.prompts import first_message
from agentsvc.conversations.starting.requests import AgentRequest, AgentRequests
from agentsvc.conversations.starting.sandbox_checks import SandboxChecks
from agentsvc.conversations.starting.states import Start, StartWithSandbox, StartWithWorkspace
from agentsvc.conversations.starting.tool_servers import Servers, find_failures


class ConversationOpener:
    """Creates conversations at agent servers."""

    def __init__(self, parts: StartParts) -> None:
        self._parts = parts
        self._requests = AgentRequests(parts)
        self._transfer = HistoryTransfer(parts.events, time_limit=parts.config.start_seconds)
        self._checks = SandboxChecks(parts)
        self._progress = Progress(parts)

    async def open(self, prepared: StartWithWorkspace) -> None:
        """Create the conversation, watch for the first response, and store that it is ready."""
        hosted = prepared.hosted
        start = hosted.checked.start
        await self._progress.show_agent_url(start, hosted.sandbox)
        request = await self._requests.make(prepared)
        is_brought = await self._bring_history(prepared)
        run_asked_at = "" if request.inputs.first_message is None else event_time()
        info, history_end = await self._create_conversation(hosted, request, is_brought=is_brought)
        if request.inputs.first_message is not None and not request.is_of_other:
            await self._watch_first_answer(hosted, request, history_end)
        failures = await self._try_tool_servers(hosted, request.tool_servers)
        if request.steps:
            check = partial(self._check_replay, start)
            info = await play(hosted.agent, start.conversation.id, request.steps, check)
            run_asked_at = ""
        # A conversation created before a restart may have another directory than one created now.
        working_dir = info.workspace.working_dir or prepared.workspace.project_dir
        await self._progress.finish(
            start,
            info,
            working_dir=working_dir,
            failed_servers=failures,
            run_asked_at=run_asked_at,
        )

    async def _create_conversation(
        self, hosted: StartWithSandbox, request: AgentRequest, *, is_brought: bool
    ) -> tuple[ConversationInfo, str]:
        """Create the conversation; return its info and the id of the last copied event, or ""."""
        start, agent, behind = hosted.checked.start, hosted.agent, ""
        with timed(start, "conversation"):
            conversation_id, message = start.conversation.id, request.inputs.first_message
            is_known = await agent.find_conversation(conversation_id) is not None
            info = await agent.start_conversation(request.body, hide=request.hidden)
            if start.task.request.fork_of is not None:
                behind = await self._transfer.find_end(
                    conversation_id, agent, is_brought=is_brought
                )
            if is_known:
                await check_first_message(agent, info, message, behind=behind)
        return info, behind

    async def _watch_first_answer(
        self, hosted: StartWithSandbox, request: AgentRequest, history_end: str
    ) -> None:
        """Wait for the model's first response, unless the model has answered this user lately.

        Raises StartRefused if the model refuses the request or cannot be reached.
        """
        start, agent, model = hosted.checked.start, hosted.agent, request.model
        user_id, conversation_id = start.task.user_id, start.conversation.id
        if self._parts.model_tokens.health.is_trusted(user_id, model):
            return
        limit, hide = self._parts.config.first_answer_seconds, request.hidden
        with (
            timed(start, "first_answer"),
            self._parts.model_tokens.health.watching(conversation_id, model) as watched,
        ):
            if await watch_first_answer(
                agent, conversation_id, limit, watched, behind=history_end, hide=hide
            ):
                self._parts.model_tokens.health.trust(user_id, model)
            elif not request.uses_model_proxy:
                # The agent retries a failed connection for more than a minute before it reports it.
                await check_address(agent, model)

    async def _try_tool_servers(self, hosted: StartWithSandbox, servers: Servers) -> list[str]:
        """Return a message for each tool server that does not start; the start continues."""
        if not servers:
            return []
        start = hosted.checked.start
        with timed(start, "tool_servers"):
            failures = await find_failures(
                hosted.agent,
                start.conversation.id,
                servers,
                has_begun=first_message(start.task.request) is not None,
            )
        await self._progress.note(start, "\n".join(failures) or None)
        return failures

    async def _bring_history(self, prepared: StartWithWorkspace) -> bool:
        """Upload the history of a fork to its agent server; returns as `HistoryTransfer.bring`."""
        start = prepared.hosted.checked.start
        if start.task.request.fork_of is None:
            return False
        return await self._transfer.bring(
            start.conversation.id,
            prepared.hosted.agent,
            old_dir=prepared.old_dir,
            new_dir=prepared.workspace.project_dir,
        )

    async def _check_replay(self, start: Start) -> None:
        await self._progress.check_exists(start)
        await self._checks.check(start)
