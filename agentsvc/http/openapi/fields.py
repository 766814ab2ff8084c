"""Texts of fields that mean the same in every struct they are in; a struct's own text wins.

Those of a setting are in `Settings`, the table of settings.
"""

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
    # What is told of settings
    "provider_tokens_set": "Providers with a stored token, each with its host; null: the usual host",
    "llm_api_key_set": "Whether a key of the model is stored",
    "search_api_key_set": "Whether a key of Tavily is stored",
}
"""Texts by the name of the field in JSON."""
