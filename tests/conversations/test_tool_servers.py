"""Which tool servers an agent has none of the tools of."""

from typing import Any

import msgspec
import pytest

from agentsvc.conversations.starting.tool_servers import ListedTool, without_tools

TOOL = {"kind": "MCPToolDefinition"}


@pytest.mark.parametrize(
    ("servers", "tools", "without"),
    [
        pytest.param(["a"], [], ["a"]),
        pytest.param(["a"], [{"kind": "TerminalTool", "title": "terminal"}], ["a"]),
        # The tools of a lone server have no prefix.
        pytest.param(["a"], [{**TOOL, "title": "add"}], []),
        pytest.param(["a", "b"], [{**TOOL, "title": "a_add"}], ["b"]),
        pytest.param(["a", "a_b"], [{**TOOL, "title": "a_b_add"}], ["a"]),
        pytest.param(["a", "b"], [{"kind": "TerminalTool", "title": "a_add"}], ["a", "b"]),
    ],
)
def test_a_server_is_known_by_the_names_of_its_tools(
    servers: list[str], tools: list[dict[str, Any]], without: list[str]
) -> None:
    told = msgspec.convert(tools, list[ListedTool])
    given: dict[str, dict[str, Any]] = {name: {} for name in servers}
    assert list(without_tools(given, told)) == without
