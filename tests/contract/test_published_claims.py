"""Each published operation that is offered here is offered as it was published.

It has the same method and path, wants no parameter that clients do not send, takes those they must
send, and answers what they were generated for.
"""

from typing import Any, Final

import pytest

from agentsvc.app import published_routes
from tests.conftest import FAST
from tests.description import Operation, description_of
from tests.published import DOCUMENTS, Published, misfits, operations, shape_of

OURS: Final = description_of(published_routes(FAST))
BY_SHAPE: Final = {
    f"{operation.method} {shape_of(operation.path)}": operation for operation in OURS.operations()
}
CLAIMED: Final = {f"{published.version} {published.name}": published for published in operations()}

# Where we differ on purpose, and why.

OTHER_PATHS: Final = {
    # What is published wants the id of the sandbox twice, in the path and in the query; clients
    # send it in either place.
    "v1 delete /api/v1/sandboxes/{id}": "/api/v1/sandboxes/{sandbox_id}",
}
NOT_REQUIRED: Final = {
    "v1 delete /api/v1/sandboxes/{id}": {"query sandbox_id"},
    # Without ids there is a page of all of them.
    "v1 get /api/v1/app-conversations": {"query ids"},
}
NOT_READ: Final = {
    # The body of a GET, which no client sends.
    "v0 get /api/conversations/{conversation_id}/events",
}
OTHER_STATUS: Final = {
    # What the published server really answers.
    "v0 post /api/reset-settings": 410,
    "v0 post /api/secrets": 201,
}
MORE_VALUES: Final = {
    "ARCHIVED, ERROR": "V0 had them in the end, for a sandbox that is gone or has failed",
    "automation, bitbucket": "V0 shows what was started through V1",
    "azure_devops, bitbucket_data_center, forgejo": "V0 shows what was started through V1",
    "CREATE_MICROAGENT": "V1 shows what was started through V0",
}
OTHER_ANSWERS: Final = {
    # Without ids there is a page.
    "v1 get /api/v1/app-conversations": {"$: object where array is published"},
    # What the published server really answers.
    "v0 post /api/conversations/{conversation_id}/upload-files": {
        "$.file_urls: published as required, and not always there",
        "$.skipped_files[]: object where string is published",
    },
    # Front ends of November 2025 ask for pages.
    "v0 get /api/user/repository/branches": {"$: object where array is published"},
}


def ours(published: Published) -> Operation:
    return BY_SHAPE[f"{published.method} {shape_of(published.path)}"]


def whole(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in the place of a reference to it."""
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def is_wider(problem: str) -> bool:
    """Whether all that is wrong is a value that clients may not know, for a reason."""
    values, _, rest = problem.partition(": ")[2].partition(" beside ")
    return rest == "what is published" and values in MORE_VALUES


def required(about: dict[str, Any]) -> set[str]:
    return {
        f"{one['in']} {one['name']}"
        for one in about.get("parameters", [])
        if one.get("required") and one["in"] == "query"
    }


@pytest.mark.parametrize("name", CLAIMED)
def test_it_is_offered_under_the_same_path(name: str) -> None:
    published = CLAIMED[name]
    assert ours(published).path == OTHER_PATHS.get(name, published.path)


@pytest.mark.parametrize("name", CLAIMED)
def test_it_requires_the_same_parameters(name: str) -> None:
    published = CLAIMED[name]
    offered = required(ours(published).about)
    assert offered == required(published.about) - NOT_REQUIRED.get(name, set())


@pytest.mark.parametrize("name", sorted(CLAIMED.keys() - NOT_READ))
def test_its_body_needs_no_more_than_was_published(name: str) -> None:
    published = CLAIMED[name]
    described = ours(published)
    offered = described.about.get("requestBody", {})
    wanted = published.about.get("requestBody")
    if wanted is None:
        # The published server reads one all the same, where there is one to read.
        return
    assert offered.get("required", False) <= wanted.get("required", False)
    for media in set(offered.get("content", {})) & set(wanted.get("content", {})):
        needed = OURS.resolve(offered["content"][media]["schema"]).get("required", [])
        sent = whole(wanted["content"][media]["schema"], DOCUMENTS[published.version])
        assert set(needed) <= set(sent.get("required", []))
    assert set(wanted.get("content", {})) <= set(offered.get("content", {}))


@pytest.mark.parametrize("name", CLAIMED)
def test_its_answer_has_what_was_published(name: str) -> None:
    published = CLAIMED[name]
    status, schema = published.success
    described = ours(published)
    assert described.route.status == OTHER_STATUS.get(name, status)
    if described.route.answer is None:
        return
    answer = OURS.answer(described, int(described.route.status))
    assert answer is not None
    content = answer["content"].get("application/json", {})
    problems = misfits(
        schema, DOCUMENTS[published.version], content.get("schema", {}), OURS.document
    )
    found = {problem for problem in problems if not is_wider(problem)}
    assert found == OTHER_ANSWERS.get(name, set())
