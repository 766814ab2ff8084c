"""No spelling of a forbidden destination gets through a proxy."""

import pytest

from agentsvc.plugin.egress import Mode, parse_policy
from tests.plugin.egress.destinations import LISTED, LOOPBACK, MALFORMED, NAMES, PRIVATE, TABLE
from tests.plugin.egress.rig import ask, connect, open_proxy, open_target

EVERY = [*LOOPBACK, *PRIVATE, *MALFORMED, *NAMES]
REFUSED = (b"HTTP/1.1 400 ", b"HTTP/1.1 403 ")


def test_there_are_two_hundred_spellings() -> None:
    assert len(set(EVERY)) == len(EVERY) >= 200


@pytest.mark.parametrize("mode", [Mode.ALLOWLIST, Mode.OPEN])
async def test_no_spelling_of_a_forbidden_host_gets_a_tunnel(mode: Mode) -> None:
    async with open_target() as target:
        listed = [text.replace("PORT", str(target.port)) for text in LISTED]
        policy = parse_policy(mode, listed)
        async with open_proxy(policy, TABLE) as (_, port):
            through = []
            # What is open to all may look up and reach any name; what these lead to is theirs.
            tried = EVERY if mode is not Mode.OPEN else [*LOOPBACK, *PRIVATE, *MALFORMED, *TABLE]
            for host in tried:
                answer = await connect(port, f"{host}:{target.port}")
                if not answer.startswith(REFUSED):
                    through.append((host, answer))
            assert through == []
        assert target.heads == []


async def test_no_spelling_of_a_forbidden_host_gets_a_plain_request() -> None:
    async with open_target() as target:
        listed = [text.replace("PORT", str(target.port)) for text in LISTED]
        async with open_proxy(parse_policy("allowlist", listed), TABLE) as (_, port):
            through = []
            for host in EVERY:
                line = f"GET http://{host}:{target.port}/x?y HTTP/1.1\r\nHost: pypi.org\r\n\r\n"
                answer = await ask(port, line.encode("utf-8", "surrogateescape"))
                if not answer.startswith(REFUSED):
                    through.append((host, answer))
            assert through == []
        assert target.heads == []
