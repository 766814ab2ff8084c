"""Descriptions of fields that mean the same in all structs; a struct's own description wins.

Descriptions of settings are in the struct `Settings`.
"""

from typing import Final

_GTE: Final = "at or after this time; ISO 8601, UTC unless an offset is given. Omitted: no limit"
_LT: Final = "before this time; ISO 8601, UTC unless an offset is given. Omitted: no limit"

SHARED: Final = {
    # Lists
    "page_id": "`next_page_id` of the previous page; omitted or empty: the first page",
    "limit": "Maximum number of items on the page",
    "next_page_id": "`page_id` of the next page; null on the last page",
    "created_at__gte": f"Only items created {_GTE}",
    "created_at__lt": f"Only items created {_LT}",
    "updated_at__gte": f"Only items last changed {_GTE}",
    "updated_at__lt": f"Only items last changed {_LT}",
    # Records
    "created_at": "Time of creation, in UTC",
    "updated_at": "Time of the last change, in UTC",
    "request_id": "Id of the request, as in the server's log and in `X-Request-Id`",
    "selected_repository": "Repository in its workspace, as `owner/name`; null: none",
    "selected_branch": "Requested branch; null: the default branch",
    "git_provider": "Git provider of the repository; null: none or unknown",
    "trigger": "Origin of the conversation; informational. Null: not given",
    "pr_number": "Numbers of related pull requests; informational",
    "cache_prompt": "Whether the model's provider may cache the prompt up to this part",
    # Settings
    "provider_tokens_set": "Providers with a stored token, each with its host; null: the default host",
    "llm_api_key_set": "Whether an API key of the model is stored",
    "search_api_key_set": "Whether an API key of Tavily is stored",
}
"""Descriptions by JSON field name."""
