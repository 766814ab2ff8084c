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
    """Features that a front end shows or hides."""

    enable_billing: bool = False
    """Always false: there is no billing"""
    hide_llm_settings: bool = False
    """Always false: users choose their own models"""
    enable_jira: bool = False
    """Always false: this server does not have this integration"""
    enable_jira_dc: bool = False
    """Always false: this server does not have this integration"""
    enable_linear: bool = False
    """Always false: this server does not have this integration"""
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
    """WebClientConfig: configuration of published front ends."""

    app_mode: Literal["oss", "saas"] = "oss"
    """Always `oss`: users log in with API keys"""
    posthog_client_key: str | None = None
    """Always null: there are no analytics"""
    feature_flags: FeatureFlags = FeatureFlags()
    """Features that a front end shows or hides"""
    providers_configured: list[Provider] = []
    """Always empty: there is no login by git providers"""
    maintenance_start_time: str | None = None
    """Always null: maintenance is not announced"""
    auth_url: str | None = None
    """Always null: there is no login at another URL"""
    recaptcha_site_key: str | None = None
    """Always null"""
    faulty_models: list[str] = []
    """Models that a front end should warn about; always empty"""
    error_message: str | None = None
    """Always null"""
    updated_at: Time
    """When the server was started, in UTC"""
    github_app_slug: str | None = None
    """Always null: there is no GitHub app"""
    gitlab_enabled: bool = False
    """Always false: there is no login by GitLab"""
    provider_default_hosts: dict[str, str] = {}
    """Hosts of git providers that differ from the default; always empty"""
    slack_enabled: bool = False
    """Always false: this server does not have this integration"""
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
    """Name of this schema"""


class AgentProfileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An agent profile."""

    id: str | None
    """Id of the agent profile; null if it has none"""
    name: str
    """Name of the agent profile"""
    agent_kind: str
    """Kind of the agent"""
    revision: int | None
    """Revision of the agent profile; null if revisions are not counted"""
    llm_profile_ref: str | None
    """Name of its LLM profile; null: the model of the settings"""
    mcp_server_refs: list[str] | None
    """Names of its tool servers; null: those of the settings"""


class AgentProfiles(msgspec.Struct, frozen=True, kw_only=True):
    """The agent profiles; always none, because agents are configured by the settings."""

    profiles: list[AgentProfileInfo] = []
    """Always empty"""
    active_agent_profile_id: str | None = None
    """Always null"""


ROUTES: Final = Routes()


@ROUTES.add("GET", "/api/v1/web-client/config", scope=Scope.OPEN)
async def get_config(request: web.Request) -> WebClientConfig:
    """Get the configuration of front ends.

    Published front ends read it at page load, before they have a key.
    """
    return WebClientConfig(updated_at=to_stored(request.app[ACTIVITY].started_at))


@ROUTES.add("GET", "/api/agent-profiles")
async def get_agent_profiles(_request: web.Request) -> AgentProfiles:
    """List agent profiles; always empty.

    For front ends that ask for them. On this server agents are configured by the settings.
    """
    return AgentProfiles()
