"""The kubernetes backend as tests set it up at an API server of their own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.rig import Rig, open_rig
from tests.kube.api import KubeApi
from tests.plugin_loading import part

if TYPE_CHECKING:
    from kubernetes import backend, settings
else:
    backend, settings = part("kubernetes.backend"), part("kubernetes.settings")

type Json = dict[str, Any]


def config_of(api: KubeApi, tmp_path: Path, **changes: Any) -> Any:
    fields = {
        "kubeconfig": str(api.kubeconfig(tmp_path / "config")),
        "reach": "pod",
        "server_cidrs": ("127.0.0.0/8",),
        "stop_seconds": 1,
        "request_seconds": 5.0,
        **changes,
    }
    return settings.KubernetesConfig(**fields)


@asynccontextmanager
async def rig_on(api: KubeApi, tmp_path: Path, **changes: Any) -> AsyncIterator[Rig]:
    options = KitOptions(
        order_overrides={"image": "agent:1", "command": ("python3", "-c", WORKLOAD)}, beacon_host=""
    )
    config = config_of(api, tmp_path, **changes)
    async with open_rig(backend.KubernetesBackend, config, options) as rig:
        yield rig


def pod_of(api: KubeApi, sandbox_id: str) -> Json:
    return api.store.get("pods", "default", f"oh-agent-server-{sandbox_id}")


async def until(is_so: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            found = is_so()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.02)
