"""Makes all that starts consist of, once for a server."""

import msgspec

from agentsvc.agentserver import AgentClient
from agentsvc.base import Supervisor
from agentsvc.config import ConversationsConfig
from agentsvc.conversations.archives import Archives
from agentsvc.conversations.deletion import ConversationDeletion
from agentsvc.conversations.event_ingestor import EventIngestor
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.history_transfer import HistoryTransfer
from agentsvc.conversations.model_tokens import ModelTokens
from agentsvc.conversations.secret_lookup import LookupTokens
from agentsvc.conversations.starting.checks import RequestChecks
from agentsvc.conversations.starting.ending import Ending
from agentsvc.conversations.starting.files import FileSteps
from agentsvc.conversations.starting.hosting import Hosting
from agentsvc.conversations.starting.opening import Opening
from agentsvc.conversations.starting.pipeline import StartPipeline, Steps
from agentsvc.conversations.starting.progress import Progress
from agentsvc.conversations.starting.requests import AgentRequests
from agentsvc.conversations.starting.sandbox_checks import SandboxChecks
from agentsvc.conversations.starting.sandbox_choice import SandboxChooser
from agentsvc.conversations.starting.service import StartFollowers, StartOrders, Starts
from agentsvc.conversations.stores import ConversationStores
from agentsvc.git import GitProviders
from agentsvc.sandboxes import Sandboxes
from agentsvc.settings import SecretStore, SettingsStore
from agentsvc.storage import Vault


class StartParts(msgspec.Struct, frozen=True, kw_only=True):
    """What starts need of the server."""

    sandboxes: Sandboxes
    agents: AgentClient
    archives: Archives
    settings: SettingsStore
    secrets: SecretStore
    events: EventLog
    model_tokens: ModelTokens
    ingestor: EventIngestor
    deletion: ConversationDeletion
    supervisor: Supervisor
    git: GitProviders
    config: ConversationsConfig


def make_starts(stores: ConversationStores, vault: Vault, parts: StartParts) -> Starts:
    """Return the starts of conversations, with the steps that each of them takes."""
    sandboxes, config = parts.sandboxes, parts.config
    followers = StartFollowers()
    progress = Progress(stores, followers.announce)
    checks = SandboxChecks(sandboxes, start_seconds=config.start_seconds)
    chooser = SandboxChooser(stores, sandboxes=sandboxes, progress=progress, checks=checks)
    told = followers.announce
    ending = Ending(
        stores,
        sandboxes=sandboxes,
        ingestor=parts.ingestor,
        deletion=parts.deletion,
        on_change=told,
    )
    steps = _make_steps(
        vault, parts, chooser=chooser, checks=checks, progress=progress, ending=ending
    )
    pipeline = StartPipeline(
        stores,
        steps,
        sandboxes=sandboxes,
        checks=checks,
        progress=progress,
        ending=ending,
        start_seconds=config.start_seconds,
    )
    orders = StartOrders(
        stores, sandboxes=sandboxes, settings=parts.settings, archives=parts.archives
    )
    return Starts(
        stores,
        orders=orders,
        chooser=chooser,
        pipeline=pipeline,
        followers=followers,
        events=parts.events,
        supervisor=parts.supervisor,
    )


def _make_steps(
    vault: Vault,
    parts: StartParts,
    *,
    chooser: SandboxChooser,
    checks: SandboxChecks,
    progress: Progress,
    ending: Ending,
) -> Steps:
    sandboxes, config = parts.sandboxes, parts.config
    hosting = Hosting(
        sandboxes=sandboxes,
        agents=parts.agents,
        chooser=chooser,
        checks=checks,
        progress=progress,
        config=config,
    )
    files = FileSteps(
        archives=parts.archives,
        chooser=chooser,
        progress=progress,
        git=parts.git,
        config=config,
        checkpoints=sandboxes.checkpoints,
    )
    requests = AgentRequests(
        sandboxes=sandboxes,
        secrets=parts.secrets,
        lookup_tokens=LookupTokens(vault),
        model_tokens=parts.model_tokens,
        progress=progress,
        has_public_skills=config.public_skills,
    )
    opening = Opening(
        requests=requests,
        transfer=HistoryTransfer(parts.events, time_limit=config.start_seconds),
        health=parts.model_tokens.memory,
        checks=checks,
        progress=progress,
        ending=ending,
        first_answer_seconds=config.first_answer_seconds,
    )
    return Steps(
        check=RequestChecks(parts.settings, parts.secrets).check,
        get_sandbox=hosting.host,
        prepare_files=files.prepare,
        run_setup_script=files.run_setup_script,
        install_hooks=files.install_hooks,
        load_hooks=files.load_hooks,
        open_conversation=opening.open,
    )
