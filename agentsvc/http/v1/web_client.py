"""Configuration that web front ends read before login."""

from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web

from agentsvc.base import to_stored
from agentsvc.domain import Provider
from agentsvc.http.middleware.pipeline import ACTIVITY
from agentsvc.http.routes import Routes, Scope
from agentsvc.http.wire import Time


class FeatureFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What a front end shows; on a single node there is nobody to bill."""

    enable_billing: bool = False
    """Always false: there is nobody to bill"""
    hide_llm_settings: bool = False
    """Always false: users choose their own models"""
    enable_jira: bool = False
    """Always false: there is no such integration"""
    enable_jira_dc: bool = False
    """Always false: there is no such integration"""
    enable_linear: bool = False
    """Always false: there is no such integration"""
    hide_users_page: bool = False
    """Always false"""
    hide_billing_page: bool = False
    """Always false"""
    hide_integrations_page: bool = False
    """Always false"""
    hide_personal_workspaces: bool = False
    """Always false"""
    allow_user_llm_configuration: bool = True
    """Always true: users choose their own models"""
    enable_acp: bool = True
    """Always true, as published front ends expect it"""
    deployment_mode: Literal["cloud", "self_hosted"] | None = None
    """Always null: neither a cloud nor a managed installation"""
    enable_onboarding: bool = False
    """Always false: there is no tour for new users"""
    enable_automations: bool = True
    """Always true, as published front ends expect it"""
    enable_agent_canvas_banner: bool = False
    """Always false: no other front end is advertised"""


class WebClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """WebClientConfig: what a published front end shows or leaves out."""

    app_mode: Literal["oss", "saas"] = "oss"
    """Always `oss`: users log in with API keys"""
    posthog_client_key: str | None = None
    """Always null: nothing is measured about users"""
    feature_flags: FeatureFlags = FeatureFlags()
    """What a front end shows or leaves out"""
    providers_configured: list[Provider] = []
    """Git providers by which users could log in; always empty"""
    maintenance_start_time: str | None = None
    """Always null: no maintenance is announced"""
    auth_url: str | None = None
    """Always null: nobody logs in elsewhere"""
    recaptcha_site_key: str | None = None
    """Always null"""
    faulty_models: list[str] = []
    """Models a front end should warn of; always empty"""
    error_message: str | None = None
    """Always null"""
    updated_at: Time
    """When the server was started, in UTC"""
    github_app_slug: str | None = None
    """Always null: there is no GitHub app"""
    gitlab_enabled: bool = False
    """Always false: nobody logs in by GitLab"""
    provider_default_hosts: dict[str, str] = {}
    """Host of each git provider that is not at its usual one; always empty"""
    slack_enabled: bool = False
    """Always false: there is no such integration"""
    email_enabled: bool = False
    """Always false: no e-mail is sent"""
    email_change_enabled: bool = False
    """Always false"""
    acp_providers: Annotated[list[Any], msgspec.Meta(max_length=0)] = []
    """Always empty"""
    jira_dc_oauth_host: str | None = None
    """Always null"""
    jira_dc_service_account_managed: bool = False
    """Always false"""
    jira_dc_service_account_email: str | None = None
    """Always null"""
    jira_dc_service_account_config_error: str | None = None
    """Always null"""
    kind: Literal["WebClientConfig"] = "WebClientConfig"
    """Name of this shape"""


class AgentProfileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A saved agent."""

    id: str | None
    """Id of the saved agent; null if it has none"""
    name: str
    """Name of the saved agent"""
    agent_kind: str
    """Kind of the agent"""
    revision: int | None
    """Number of its latest change; null if it is not counted"""
    llm_profile_ref: str | None
    """Saved model it works with; null: the one of the settings"""
    mcp_server_refs: list[str] | None
    """Names of its tool servers; null: those of the settings"""


class AgentProfiles(msgspec.Struct, frozen=True, kw_only=True):
    """The saved agents, of which there are none: the settings say what an agent is."""

    profiles: list[AgentProfileInfo] = []
    """Always empty"""
    active_agent_profile_id: str | None = None
    """Always null"""


ROUTES: Final = Routes()


@ROUTES.add("GET", "/api/v1/web-client/config", scope=Scope.OPEN)
async def get_config(request: web.Request) -> WebClientConfig:
    """Say what a front end should show.

    What published front ends ask for at page load, before they have a key.
    """
    return WebClientConfig(updated_at=to_stored(request.app[ACTIVITY].started_at))


@ROUTES.add("GET", "/api/agent-profiles")
async def get_agent_profiles(_request: web.Request) -> AgentProfiles:
    """List the saved agents: there are none, the settings say what an agent is.

    For front ends that ask for them; the list is always empty.
    """
    return AgentProfiles()
