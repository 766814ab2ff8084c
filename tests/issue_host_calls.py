"""What the calls to git hosts may carry, as the published description of each host has it."""

from typing import Final

_PAGED: Final = {"github": "page per_page", "gitlab": "page per_page", "forgejo": "page limit"}
_SORTED: Final = "page per_page order_by sort"
CARRIES: Final[dict[str, dict[str, str]]] = {
    "github": {
        r"GET /issues": f"{_PAGED['github']} state sort direction since labels assignee creator",
        r"GET /pulls": f"{_PAGED['github']} state head base sort direction",
        r"GET /(issues|pulls|commits)/.+": _PAGED["github"],
        r"POST /issues/\d+/comments|PATCH /issues/comments/\d+": "body",
        r"POST /issues/\d+/labels": "labels",
        r"POST /pulls": "title head base body draft maintainer_can_modify",
        r"POST /hooks": "name config events active",
    },
    "forgejo": {
        r"GET /issues": f"{_PAGED['forgejo']} state type since labels q",
        r"GET /pulls": f"{_PAGED['forgejo']} state sort milestone labels poster",
        # It pays no heed to pages of comments.
        r"GET /(issues|pulls|commits)/.+": _PAGED["forgejo"],
        r"POST /issues/\d+/comments|PATCH /issues/comments/\d+": "body updated_at",
        r"POST /issues/\d+/labels": "labels",
        r"POST /labels": "name color description exclusive",
        r"POST /pulls": "title head base body assignees labels milestone due_date",
        r"POST /hooks": "type config events active branch_filter",
    },
    "gitlab": {
        r"GET /issues": f"{_SORTED} state updated_after labels scope",
        r"GET /merge_requests": f"{_SORTED} state source_branch target_branch",
        r"GET /(issues|merge_requests)/\d+/notes": _SORTED,
        r"GET /(issues|repository)/.+": _PAGED["gitlab"],
        r"POST /(issues|merge_requests)/\d+/notes": "body",
        r"PUT /(issues|merge_requests)/\d+/notes/\d+": "body",
        r"PUT /issues/\d+": "add_labels remove_labels title description",
        r"POST /merge_requests": "title source_branch target_branch description labels",
        r"POST /hooks": "url token push_events issues_events note_events merge_requests_events pipeline_events",
    },
    "bitbucket": {
        r"GET /issues": "page pagelen q sort",
        r"GET /pullrequests": "page pagelen q sort state",
        r"GET /2.0/workspaces/.+": "page pagelen q sort",
        r"GET /(issues|pullrequests|commit)/.+": "page pagelen q sort",
        r"POST /(issues|pullrequests)/\d+/comments": "content",
        r"PUT /(issues|pullrequests)/\d+/comments/\d+": "content",
        r"POST /pullrequests": "title source destination description draft",
        r"POST /hooks": "url description active events secret",
    },
}
"""What queries and bodies of calls may have, by patterns of the calls; nothing where there is none."""
