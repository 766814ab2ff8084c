"""An engine that DOCKER_HOST names at another machine, reached by the system's own `ssh`."""

import os
from pathlib import Path

import pytest

from agentsvc.base.errors import BackendUnavailable
from agentsvc.plugin.backend import Phase
from tests.live.conftest import unavailable
from tests.live.containers import Engine
from tests.live.engines import EngineFailed
from tests.live.ssh import ssh_server
from tests.live.test_docker_backend import rig_on

pytestmark = [pytest.mark.live, pytest.mark.timeout(180, func_only=True)]


async def test_an_engine_is_reached_by_ssh_and_again_after_the_connection_was_lost(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        async with ssh_server(tmp_path) as server:
            monkeypatch.setenv("PATH", f"{server.programs}:{os.environ['PATH']}")
            monkeypatch.setenv("DOCKER_HOST", f"ssh://{server.address}{engine.socket}")
            async with rig_on(engine, host="") as rig:
                order = rig.order()
                handle, report = await rig.run(order)
                assert await rig.ask(report, "GET", "/name") == order.sandbox_id.encode()
                await server.hang_up()

                async def is_back() -> bool:
                    try:
                        return (await rig.backend.inspect(handle)).phase is Phase.RUNNING
                    except BackendUnavailable:
                        return False

                await rig.until(is_back)
                await rig.backend.delete(handle)
            (tmp_path / "mine.pub").write_text("")
            with pytest.raises(BackendUnavailable, match="cannot be reached"):
                async with rig_on(engine, host=""):
                    pass
    except EngineFailed as exc:
        unavailable(str(exc))
