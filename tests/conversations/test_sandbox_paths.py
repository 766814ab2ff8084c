"""Where a path that a client names is in the sandbox of a conversation."""

import pytest

from agentsvc.base.errors import BadRequest
from agentsvc.conversations.files import check_ref, is_inside, locate

ID = "0123456789abcdef0123456789abcdef"
ROOT = "/srv/sandbox/workspace"


@pytest.mark.parametrize(
    ("path", "project", "found"),
    [
        ("/etc/motd", ROOT, "/etc/motd"),
        ("a/b", ROOT, f"{ROOT}/a/b"),
        ("a/b", "", "a/b"),
        ("/workspace/project", ROOT, ROOT),
        ("/workspace/project/PLAN.md", ROOT, f"{ROOT}/PLAN.md"),
        ("/workspace/project/PLAN.md", "", "/workspace/project/PLAN.md"),
        ("/workspace/projects", ROOT, "/workspace/projects"),
        ("/workspace/project/shop/a", f"{ROOT}/shop", f"{ROOT}/shop/a"),
        ("/workspace/project/shop", f"{ROOT}/shop", f"{ROOT}/shop"),
        ("/workspace/project/PLAN.md", f"{ROOT}/shop", f"{ROOT}/shop/PLAN.md"),
        ("/workspace/project/shopping", f"{ROOT}/shop", f"{ROOT}/shop/shopping"),
        (f"/workspace/project/{ID}/a", f"{ROOT}/{ID}", f"{ROOT}/{ID}/a"),
        (f"/workspace/project/{ID}/shop/a", f"{ROOT}/{ID}/shop", f"{ROOT}/{ID}/shop/a"),
    ],
)
def test_a_path_is_found_where_the_sandbox_has_its_projects(
    path: str, project: str, found: str
) -> None:
    assert locate(path, project=project, root=ROOT, conversation_id=ID) == found


def test_a_sandbox_with_the_usual_root_is_taken_at_its_word() -> None:
    path = "/workspace/project/PLAN.md"
    root, project = "/workspace", "/workspace/elsewhere"
    assert locate(path, project=project, root=root, conversation_id=ID) == path


@pytest.mark.parametrize("ref", [None, "HEAD", "HEAD~2", "main", "feature/x", "a1b2c3", "v1^{}"])
def test_what_git_knows_is_a_ref(ref: str | None) -> None:
    check_ref(ref)


@pytest.mark.parametrize("ref", ["", "-p", "--output=/x", "a b", "a\nb", "\0"])
def test_what_git_could_take_for_something_else_is_no_ref(ref: str) -> None:
    with pytest.raises(BadRequest):
        check_ref(ref)


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/data/s1/workspace", True),
        ("/data/s1/workspace/a/../b", True),
        ("/data/s1/workspace/../home/key", False),
        ("/data/s1/workspace-2/a", False),
        ("/data/master.key", False),
        ("/", False),
    ],
)
def test_only_what_is_below_the_workspace_is_inside(path: str, *, inside: bool) -> None:
    assert is_inside(path, "/data/s1/workspace", "") is inside
