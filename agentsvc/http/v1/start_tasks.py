"""Handlers of start tasks."""

from typing import Final

from aiohttp import web

from agentsvc.base import BadRequest
from agentsvc.http.keys import CONVERSATIONS, PRINCIPAL
from agentsvc.http.routes import EXAMPLE_ID, Routes
from agentsvc.http.urls import links_of
from agentsvc.http.v1.types_sandboxes import check_ids
from agentsvc.http.v1.types_start import (
    StartTaskFilter,
    StartTaskIds,
    StartTaskQuery,
    StartTaskView,
    from_start_task,
)
from agentsvc.http.wire import Page

PREFIX: Final = "/api/v1/app-conversations/start-tasks"

ROUTES: Final = Routes(PREFIX)


@ROUTES.add("GET", "", errors=(BadRequest,), example={"ids": [EXAMPLE_ID]})
async def get_start_tasks(request: web.Request, query: StartTaskIds) -> list[StartTaskView | None]:
    """Get start tasks by id.

    A list of as many items as `ids`, in their order, null for each that is unknown.
    """
    ids = check_ids([each.hex for each in query.ids])
    tasks = await request.app[CONVERSATIONS].starts.find_many(request[PRINCIPAL].user_id, ids)
    links = links_of(request)
    return [from_start_task(task, links) if task else None for task in tasks]


@ROUTES.add("GET", "/search", example={"limit": 10})
async def search_start_tasks(request: web.Request, query: StartTaskQuery) -> Page[StartTaskView]:
    """Search start tasks.

    Newest first unless `sort_order` says otherwise.
    """
    tasks, next_page_id = await request.app[CONVERSATIONS].starts.search(
        request[PRINCIPAL].user_id,
        sort=query.sort_order,
        page_id=query.page_id,
        limit=query.limit,
        **query.to_filter(),
    )
    links = links_of(request)
    return Page(items=[from_start_task(task, links) for task in tasks], next_page_id=next_page_id)


@ROUTES.add("GET", "/count")
async def count_start_tasks(request: web.Request, query: StartTaskFilter) -> int:
    """Count start tasks.

    With the filters of the search.
    """
    wanted = query.to_filter()
    return await request.app[CONVERSATIONS].starts.count(request[PRINCIPAL].user_id, **wanted)
