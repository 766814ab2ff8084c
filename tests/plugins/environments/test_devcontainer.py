"""A repository's `devcontainer.json`: what is taken of it, and what is refused."""

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.base import StartRefused
from tests.plugin_loading import part

if TYPE_CHECKING:
    from environments import devcontainer
else:
    devcontainer = part("environments.devcontainer")

NAME = ".devcontainer/devcontainer.json"


def parsed(**fields: Any) -> devcontainer.Devcontainer:
    return devcontainer.parse(json.dumps(fields).encode(), NAME)[0]


def bash(*lines: str) -> str:
    """Return what bash writes, in a workspace of that name."""
    script = "\n".join(("export containerWorkspaceFolder='/w/my site' ONE=1", *lines))
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    return f"{result.stdout}{result.stderr}{result.returncode or ''}"


def test_comments_and_commas_at_the_end_are_no_matter() -> None:
    content = b"""\xef\xbb\xbf// For format details, see https://aka.ms/devcontainer.json
    {
        "image": "a/b:1", /* not "c" */
        "postCreateCommand": "echo 'http://x' /* , */ \\"",  // with an end
        "forwardPorts": [3000, /* here */ ],
        "mounts": ["x"],
        "runArgs": [],
    }"""
    found, left_out = devcontainer.parse(content, NAME)
    assert found.image == "a/b:1"
    assert found.post_create_command == "echo 'http://x' /* , */ \""
    assert left_out == ["`mounts`"]
    assert found.of_image == ["`image`"]


def test_an_older_file_names_its_dockerfile_at_the_top() -> None:
    found = parsed(dockerFile="Old", context="..")
    assert (found.built.dockerfile, found.built.context) == ("Old", "..")
    found = parsed(build={"dockerfile": "New"}, dockerFile="Old", context="..")
    assert (found.built.dockerfile, found.built.context) == ("New", ".")


def test_commands_of_all_forms_run_one_after_another() -> None:
    found = parsed(
        onCreateCommand="echo one; exit 0",
        updateContentCommand=["printf", "%s|", "two $ONE", "${containerWorkspaceFolder}"],
        postCreateCommand={"a": "echo three ${containerEnv:ONE}", "b": ["echo", "it's"]},
        postStartCommand="echo ${localEnv:HOME}${localEnv:NONE:started}",
    )
    assert bash(*found.set_up) == "one\ntwo $ONE|/w/my site|three 1\nit's\n"
    assert bash(*found.each_start) == "started\n"
    assert bash(*parsed(postCreateCommand={"a": "exit 3", "b": "echo no"}).set_up) == "3"


def test_variables_may_name_others() -> None:
    found = parsed(
        containerEnv={"A": "1 '2'", "GONE": "x"},
        remoteEnv={
            "PATH": "/own:${containerEnv:PATH}",
            "B": "${containerWorkspaceFolder}/${containerWorkspaceFolderBasename}",
            "C": '${containerEnv:NONE:"`$(x)`}${localEnv:TOKEN}${unknown}$ONE',
            "GONE": None,
        },
    )
    said = bash(*found.exports, 'printf "%s\\n" "$A" "$B" "$C" "${GONE-none}" "${PATH%%:*}"')
    assert said.split("\n") == [
        *("1 '2'", "/w/my site/my site", '"`$(x)`${unknown}$ONE', "none", "/own", ""),
    ]


def test_arguments_of_a_build_know_nothing_of_this_machine() -> None:
    args = {"A": "${localEnv:HOME}x", "B": "${localEnv:HOME:y}"}
    assert devcontainer.fill_args(args) == {"A": "x", "B": "y"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b" " * 10_000_000, "larger than 64 KiB"),
        (b"", "cannot be used"),
        (b"\xff", "cannot be used"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"image": "a"', "cannot be used"),
        (b'{"a": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", "nested too deeply"),
        (b'{"image": ' + b'{"a":' * 10_000, "Expected `str`, got `object`"),
        (b'"' + b'\\"' * 30_000, "cannot be used"),
        (b"/*" * 30_000, "cannot be used"),
        (b"{" + b", " * 30_000, "cannot be used"),
        ((b"," + b" " * 100) * 600, "cannot be used"),
        (b'{"image": 1}', "Expected `str`, got `int` - at `$.image`"),
        (b'{"image": "a\\u0000"}', "at `$.image`"),
        (b'{"image": "\\ud800"}', "cannot be used"),
        (b'{"build": "Dockerfile"}', "at `$.build`"),
        (b'{"build": {"args": {"A=B": "1"}}}', "at `key` in `$.build.args`"),
        (b'{"remoteEnv": {"A\\nB": "1"}}', "at `key` in `$.remoteEnv`"),
        (b'{"remoteEnv": {"A": 1}}', "at `$.remoteEnv"),
        (b'{"postCreateCommand": {"a": {"b": "c"}}}', "at `$.postCreateCommand"),
        (b'{"features": {"x": {"a": [1]}}}', "at `$.features"),
        (b'{"features": ["x"]}', "at `$.features"),
    ],
)
@pytest.mark.timeout(10)
def test_what_is_no_such_file_is_refused_at_once(content: bytes, reason: str) -> None:
    with pytest.raises(StartRefused, match=re.escape(reason)) as refused:
        devcontainer.parse(content, NAME)
    assert len(refused.value.message) < 500


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x", "../..", "a\nb"])
def test_a_path_leads_out_of_no_repository(path: str) -> None:
    with pytest.raises(StartRefused, match="outside of the repository"):
        devcontainer.beside(NAME, path)


def test_a_path_is_beside_the_file_that_names_it() -> None:
    assert devcontainer.beside(NAME, "../Dockerfile") == "Dockerfile"
    assert devcontainer.beside(NAME, "..") == "."
    assert devcontainer.beside(".devcontainer.json", "ops/Dockerfile") == "ops/Dockerfile"
