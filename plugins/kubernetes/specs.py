"""The spec that exists without configuration, if there is a kubernetes backend."""

from typing import Final

from agentsvc.plugin import Port, Spec

PUBLISHED_IMAGE: Final = "ghcr.io/openhands/agent-server:1.58.0-python"

_ENV: Final = {
    # Without it a start without internet is slow and may die at import.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "OH_CONVERSATIONS_PATH": "/workspace/conversations",
    "OH_BASH_EVENTS_DIR": "/workspace/bash_events",
    "OH_ENABLE_VNC": "false",
    "OH_PRELOAD_TOOLS": "false",
    "OH_VSCODE_PORT": "{port.vscode}",
    "WORKER_1": "{port.worker_1}",
    "WORKER_2": "{port.worker_2}",
}

SPECS: Final = (
    Spec(
        id="kubernetes",
        backend="kubernetes",
        image=PUBLISHED_IMAGE,
        # Behind the image's own entry, which is the agent server.
        command=("--host", "0.0.0.0", "--port", "{port.agent}"),  # noqa: S104  # a pod's
        working_dir="project",
        env=_ENV,
        ports=(
            Port(name="agent", number=8000),
            Port(name="vscode", number=8001, awaited=False),
            Port(name="worker_1", number=8011, awaited=False),
            Port(name="worker_2", number=8012, awaited=False),
        ),
    ),
)
