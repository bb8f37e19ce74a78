"""The server as a Ray Serve application: on every machine replicas, each a whole server with a running batch.

serve run saccade.serving.ray_app:build folder=runs/de-en replicas=4 cpus=8
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError
from saccade.serving.app import create_app
from saccade.serving.server import Server
from saccade.serving.settings import ServingSettings

ARGUMENTS = ("folder", "replicas", "cpus", "memory", "engine", "keys", "hosts")


def build(arguments: Mapping[str, str]) -> Any:
    """The application. `folder`: one or several, with commas; `cpus`: threads of each of the `replicas`;
    `hosts`: names by which others may ask; `keys`: a file of API keys."""
    from ray import serve

    unknown = [name for name in arguments if name not in ARGUMENTS]
    if unknown or "folder" not in arguments:
        raise SaccadeError(f"{unknown[0] if unknown else 'folder'}: give {', '.join(ARGUMENTS)} as name=value")
    folders = [Path(name).resolve() for name in arguments["folder"].split(",")]
    cpus = float(arguments.get("cpus", 1))
    settings = ServingSettings(
        memory=float(arguments.get("memory", 4)),
        engine=arguments.get("engine", "auto"),
        keys=Path(arguments["keys"]).resolve() if "keys" in arguments else None,
        hosts=arguments["hosts"].split(",") if "hosts" in arguments else [],
    )

    def application() -> Any:
        import torch

        os.environ["OMP_NUM_THREADS"] = str(max(1, int(cpus)))  # Ray sets it to what it thinks of the machine
        torch.set_num_threads(max(1, int(cpus)))
        return create_app(Server(folders, settings))

    @serve.deployment(
        name="saccade",
        num_replicas=int(arguments.get("replicas", 1)),
        ray_actor_options={"num_cpus": cpus},
        max_ongoing_requests=1024,  # the server has its own bounds, and answers 503 beyond them
    )
    @serve.ingress(application)
    class Replica:
        """One server of several."""

    return Replica.bind()  # type: ignore[attr-defined]
