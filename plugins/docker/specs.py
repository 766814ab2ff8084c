"""The specs that exist without configuration, if there is a docker backend."""

from typing import Final

from agentsvc.plugin import Port, Spec

PUBLISHED_IMAGE: Final = "ghcr.io/openhands/agent-server:1.58.0-python"
OWN_IMAGE: Final = "localhost/agentsvc-sandbox:1.58.0"

_ENV: Final = {
    # Without it, a start without internet is slow and may fail at import.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "OH_CONVERSATIONS_PATH": "/workspace/conversations",
    "OH_BASH_EVENTS_DIR": "/workspace/bash_events",
    "OH_ENABLE_VNC": "false",
    "OH_PRELOAD_TOOLS": "false",
    "WORKER_1": "{port.worker_1}",
    "WORKER_2": "{port.worker_2}",
}
_WORKERS: Final = (
    Port(name="worker_1", number=8011, awaited=False),
    Port(name="worker_2", number=8012, awaited=False),
)

PUBLISHED: Final = Spec(
    id=PUBLISHED_IMAGE,
    backend="docker",
    image=PUBLISHED_IMAGE,
    # Arguments of the image's own entrypoint, which is the agent server.
    command=("--host", "0.0.0.0", "--port", "{port.agent}"),  # noqa: S104  # a container's
    working_dir="project",
    env={**_ENV, "OH_VSCODE_PORT": "{port.vscode}"},
    ports=(
        Port(name="agent", number=8000),
        Port(name="vscode", number=8001, awaited=False),
        *_WORKERS,
    ),
)

OWN: Final = Spec(
    id=OWN_IMAGE,
    backend="docker",
    image=OWN_IMAGE,
    working_dir="project",
    env={**_ENV, "OH_ENABLE_VSCODE": "false"},
    ports=(Port(name="agent", number=8000), *_WORKERS),
)
