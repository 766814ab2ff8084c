"""The steps that prepare a conversation's files: clone, archive or copy, set-up script, hooks."""

from collections.abc import Mapping
from typing import Final

import msgspec

from agentsvc.base import Secret
from agentsvc.conversations.starting.environments import Environment
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.progress import Progress
from agentsvc.conversations.starting.sandbox_choice import SandboxChooser
from agentsvc.conversations.starting.states import Start, StartWithSandbox, StartWithWorkspace
from agentsvc.conversations.starting.workspace import Clone, Workspace
from agentsvc.domain import Provider, locate

_COMMITTER: Final = "agentsvc"
_COMMITTER_EMAIL: Final = "agentsvc@localhost"


class FileSteps:
    """Prepares the workspaces of starts through their agent servers; see `Workspace`."""

    def __init__(self, parts: StartParts) -> None:
        self._parts = parts
        self._chooser = SandboxChooser(parts)
        self._progress = Progress(parts)

    async def prepare(self, hosted: StartWithSandbox) -> StartWithWorkspace:
        """Bring in the files, and configure the user's git credentials and identity.

        Raises StartRefused if the files cannot be brought in.
        """
        order, settings = hosted.checked.start.task.request, hosted.checked.settings
        base = await self._chooser.base_dir(hosted)
        if order.archive_id is not None:
            prepared = await self._restore(hosted, order.archive_id, base)
        else:
            old_dir = order.copied.working_dir if order.copied else None
            workspace = await self._make_workspace(hosted, base)
            prepared = StartWithWorkspace(hosted=hosted, workspace=workspace, old_dir=old_dir)
        name, email = settings.git_user_name, settings.git_user_email
        if order.commit is not None:
            # The agent is to commit here, and git refuses commits without an identity.
            name, email = name or _COMMITTER, email or _COMMITTER_EMAIL
        await prepared.workspace.set_identity(name, email)
        return prepared

    async def run_setup_script(self, prepared: StartWithWorkspace) -> None:
        """Run the repository's set-up script, unless a prepared environment has done its work.

        With an environment, repeat its set-up if the copy is stale, and run its maintenance script;
        but nothing if the agent server already has the conversation, as after a restart. A failed
        script is noted and does not fail the start.
        """
        start, workspace = prepared.hosted.checked.start, prepared.workspace
        seconds = self._parts.config.setup_script_seconds
        order = start.task.request
        is_joined = order.sandbox_id or order.parent_conversation_id
        layer = "" if is_joined else prepared.hosted.sandbox.spec.layer
        environment = await self._parts.environments.find_by_layer(layer)
        if environment is not None and await _has_begun(prepared.hosted):
            return
        if environment is not None:
            await self._refresh(start, workspace, environment, layer)
        if environment is None or environment.repository is None:
            await self._progress.note(start, await workspace.run_setup_script(seconds))
        if environment is not None and environment.maintenance_script:
            script, what = environment.maintenance_script, "the maintenance script"
            await self._progress.note(start, await workspace.run_script(script, what, seconds))

    async def _refresh(
        self, start: Start, workspace: Workspace, environment: Environment, layer: str
    ) -> None:
        """Run the set-up of the environment again if the copy is stale."""
        is_latest = layer == environment.layer_id
        fingerprint = await workspace.fingerprint(environment.watched)
        if is_latest and fingerprint == environment.fingerprint:
            return
        if is_latest and start.conversation.selected_branch is None:
            # Only on the default branch: other branches may differ in the watched files.
            self._parts.environments.renew(environment)
        seconds = self._parts.config.setup_script_seconds
        script, what = environment.setup_script, "the set-up script of the environment"
        await self._progress.note(start, await workspace.run_script(script, what, seconds))

    async def install_hooks(self, prepared: StartWithWorkspace) -> None:
        """Install the repository's git hooks; a failure is noted and does not fail the start."""
        problem = await prepared.workspace.install_hooks()
        await self._progress.note(prepared.hosted.checked.start, problem)

    async def load_hooks(self, prepared: StartWithWorkspace) -> StartWithWorkspace:
        """Read the agent's hooks, and take a checkpoint of the files before the agent changes them.

        Skills are loaded by the agent itself, in the sandbox.
        """
        hook_config = await prepared.workspace.load_hooks()
        await self._parts.sandboxes.checkpoints.take(prepared.hosted.sandbox)
        return msgspec.structs.replace(prepared, hook_config=hook_config)

    async def _make_workspace(self, hosted: StartWithSandbox, base: str) -> Workspace:
        start, tokens = hosted.checked.start, _allowed_tokens(hosted)
        conversation, order = start.conversation, start.task.request
        repository = conversation.selected_repository
        if order.copied is not None or order.parent_conversation_id:
            # The files exist already.
            workspace = Workspace(hosted.agent, base)
            await workspace.set_credentials(tokens)
            return workspace
        if repository is None:
            workspace = Workspace(hosted.agent, base)
            await workspace.make_empty(tokens)
            return workspace
        known = hosted.checked.tokens.items()
        urls: dict[str, str | None] = {name: url for name, (url, _) in known}
        remote = locate(repository, conversation.git_provider, urls)
        workspace = Workspace(hosted.agent, f"{base}/{remote.directory}")
        await workspace.set_credentials(tokens)
        if order.commit is not None:
            await self._unpack_commit(workspace, start, repository, order.commit)
            return workspace
        clone = Clone(
            repository=repository,
            url=remote.url,
            branch=conversation.selected_branch,
            work_branch=f"openhands-workspace-{conversation.id[:8]}",
            is_full=hosted.checked.settings.git_full_clone,
            time_limit=self._parts.config.clone_seconds,
        )
        if hosted.sandbox.spec.layer:
            await workspace.update(clone)
        await workspace.clone(clone)
        return workspace

    async def _unpack_commit(
        self, workspace: Workspace, start: Start, repository: str, commit: str
    ) -> None:
        """Fetch a commit on the server and unpack it, so that no token gets into the sandbox."""
        conversation, seconds = start.conversation, self._parts.config.clone_seconds
        compared_to = start.task.request.compared_to
        async with self._parts.git.checkout(
            start.task.user_id, repository, conversation.git_provider, time_limit=seconds
        ) as checkout:
            await checkout.fetch(commit, compared_to)
            await workspace.unpack(
                await checkout.pack(),
                commit=commit,
                branch=conversation.selected_branch,
                branch_commit=compared_to,
                work_branch=f"openhands-workspace-{conversation.id[:8]}",
                url=checkout.remote.url,
                time_limit=seconds,
            )

    async def _restore(
        self, hosted: StartWithSandbox, archive_id: str, base: str
    ) -> StartWithWorkspace:
        """Restore the files of an archive, in a directory of their former name."""
        archive = await self._parts.archives.wait_ready(archive_id)
        directory = f"{base}/{archive.directory}" if archive.directory else base
        workspace = Workspace(hosted.agent, directory)
        await workspace.set_credentials(_allowed_tokens(hosted))
        await self._parts.archives.restore(archive, hosted.agent, directory)
        return StartWithWorkspace(hosted=hosted, workspace=workspace, old_dir=archive.working_dir)


def _allowed_tokens(hosted: StartWithSandbox) -> Mapping[Provider, tuple[str, Secret]]:
    """Return the git tokens that the sandbox may have."""
    return {} if hosted.sandbox.spec.withholds_secrets else hosted.checked.tokens


async def _has_begun(hosted: StartWithSandbox) -> bool:
    """Return whether the agent server has the conversation already."""
    return await hosted.agent.find_conversation(hosted.checked.start.conversation.id) is not None
