"""Texts of fields that mean the same in every struct they are in; a struct's own text wins."""

from typing import Final

_GTE: Final = "at this moment or later; ISO 8601, UTC where no offset is given. Left out: all"
_LT: Final = "before this moment; ISO 8601, UTC where no offset is given. Left out: all"

SHARED: Final = {
    # Lists
    "page_id": "`next_page_id` of the page before; left out or empty: the first page",
    "limit": "Most items on the page; what is beyond is on the next pages",
    "next_page_id": "What to send as `page_id` for the next page; null on the last page",
    "created_at__gte": f"Only what was created {_GTE}",
    "created_at__lt": f"Only what was created {_LT}",
    "updated_at__gte": f"Only what last changed {_GTE}",
    "updated_at__lt": f"Only what last changed {_LT}",
    # Records
    "created_at": "When it was created, in UTC",
    "updated_at": "When it last changed, in UTC",
    "request_id": "Id of the request, which is in the server's log and in `X-Request-Id`",
    "selected_repository": "Repository in its workspace, as `owner/name`; null: none",
    "selected_branch": "Branch that was asked for; null: the default branch",
    "git_provider": "Git hosting service of the repository; null: none, or not known",
    "trigger": "What it was started from; kept and shown only. Null: not said",
    "pr_number": "Numbers of the pull requests it is about; kept and shown only",
    "cache_prompt": "Whether the model's provider may cache the prompt up to this part",
    # Settings
    "language": "Language of the front end, as in `en`; the server does nothing with it."
    " Null: not set",
    "user_version": "Number a front end keeps here; the server does nothing with it. Null: not set",
    "agent": "Name of the agent; `CodeActAgent` is the only one there is, also for null",
    "max_iterations": "Steps of the agent after which a run ends; null: not set, which is 500",
    "security_analyzer": "What rates the risk of an action: `llm` the model, anything else, or"
    " null, nothing",
    "confirmation_mode": "Whether the agent asks before it acts: where the analyzer `llm` sees a"
    " risk, and always without it; null: not set, it does not",
    "llm_model": "Provider and name of the model, as in `anthropic/claude-sonnet-4-5`; without one"
    " no conversation starts. An empty text clears it, null changes nothing",
    "llm_api_key": "Key of the model; shown as null. An empty text clears it, null and"
    " `**********` change nothing",
    "llm_base_url": "URL of the model's API, for one that is not at its provider's usual place. An"
    " empty text clears it, null changes nothing",
    "remote_runtime_resource_factor": "How many times the limits of its spec a new sandbox gets, as"
    " far as the server allows; null: not set, which is once",
    "enable_default_condenser": "Whether a long history is shortened; null: not set, which is true",
    "condenser_max_size": "Number of events from which the history is shortened; null: not set,"
    " which is 240",
    "enable_sound_notifications": "Whether the front end plays sounds; the server does nothing with"
    " it. Null: not set, which is false",
    "enable_proactive_conversation_starters": "Whether the front end suggests tasks; the server"
    " does nothing with it. Null: not set, which is true",
    "enable_solvability_analysis": "Kept for front ends; the server does nothing with it. Null: not"
    " set, which is true",
    "user_consents_to_analytics": "Kept for front ends; the server measures nothing about users."
    " Null: not asked yet",
    "sandbox_base_container_image": "Kept for front ends; the spec says what a sandbox is made of."
    " Null: not set",
    "sandbox_runtime_container_image": "Kept for front ends; the spec says what a sandbox is made"
    " of. Null: not set",
    "search_api_key": "Key of Tavily, with which agents search the web; shown as null. An empty"
    " text clears it, null and `**********` change nothing",
    "sandbox_api_key": "Key of the user at the service that runs sandboxes, for backends that need"
    " one; shown as null. An empty text clears it, null and `**********` change nothing",
    "max_budget_per_task": "Kept for front ends, in US dollars; the server's quotas limit what is"
    " spent. Null: not set",
    "email": "E-mail address of the user; kept and shown only. Null: not set",
    "email_verified": "Kept for front ends; the server does nothing with it. Null: not known",
    "git_user_name": "Author of the agent's commits; null: not set, and what the sandbox's git says",
    "git_user_email": "E-mail address of the agent's commits; null: not set, and what the sandbox's git"
    " says",
    "git_full_clone": "Whether repositories are cloned with their whole history, else the last"
    " commit only; null: not set, which is false",
    "disabled_skills": "Names of skills that agents do not get; null: not set, which is none",
    "v1_enabled": "Kept for front ends; the server does nothing with it. Null: not set, which is true",
    "sandbox_grouping_strategy": "Which running sandbox a new conversation joins; null: not set,"
    " which is `NO_GROUPING`",
    "default_sandbox_spec_id": "Spec of new sandboxes; null, or unknown: the first one",
    "title_llm_profile": "Saved model that makes the titles of conversations; null: the model of"
    " the conversation",
    "provider_tokens_set": "Providers with a stored token, each with its host; null: the usual host",
    "llm_api_key_set": "Whether a key of the model is stored",
    "search_api_key_set": "Whether a key of Tavily is stored",
}
"""Texts by the name of the field in JSON."""
