"""How a server is set up: every limit in one place. The command line's options are some of these."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from saccade.errors import SaccadeError


class ServingSettings(BaseModel):
    """All that can be set; the defaults suit one machine, for oneself or behind a proxy."""

    model_config = ConfigDict(extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535, description="0: any that is free.")
    engine: str = "auto"
    device: str | None = "cpu"
    processes: int | None = Field(
        0, ge=0, description="Processes of each model, beside that which answers; 0: it is in that one; None: chosen."
    )
    memory: float = Field(4.0, gt=0, description="GB that loaded models may take together.")
    watch: Path | None = Field(None, description="A run in training, for /v1/watch.")
    keys: Path | None = Field(None, description="A file of API keys; without it none is needed.")
    without_keys: bool = Field(False, description="Let anyone in on a host that is not loopback.")
    hosts: list[str] = Field(default_factory=list, description="Names that requests may ask for, as behind a proxy.")
    rate: str | None = Field(None, description="Requests of an address that shows no key. Default: none on loopback.")
    cors: list[str] = Field(default_factory=list, description="Origins whose pages may call; none unless listed.")
    log_requests: bool = Field(True, description="Write a line for each request.")
    log_texts: bool = Field(False, description="Write users' texts into the log.")

    max_body: int = Field(2**20, ge=1, description="Bytes of a request.")
    max_file: int = Field(16 * 2**20, ge=1, description="Bytes of a request that brings a file.")
    max_unpacked: int = Field(64 * 2**20, ge=1, description="Bytes of a file's members, once they are unpacked.")
    max_members: int = Field(2_000, ge=1, description="Members of a file.")
    files_kept: int = Field(64 * 2**20, ge=1, description="Bytes of translated files that wait to be fetched.")
    file_minutes: float = Field(15.0, gt=0, description="Minutes that a translated file waits.")
    max_texts: int = Field(1_000, ge=1, description="Texts in one request.")
    max_characters: int = Field(200_000, ge=1, description="Characters in one request.")
    max_phrases: int = Field(
        10_000, ge=1, description="Characters of what a request's translations must hold or may not."
    )
    max_waiting: int = Field(4_096, ge=1, description="Sentences that wait for a model, of all clients.")
    max_waiting_characters: int = Field(2_000_000, ge=1, description="Their characters.")
    time_limit: float = Field(60.0, gt=0, description="Seconds that a request may take; then its work stops.")
    patience: float = Field(
        2.0,
        ge=0,
        description="Seconds that a newcomer waits for those at work to be done, before it joins them midway.",
    )
    file_time_limit: float = Field(600.0, gt=0, description="Seconds that the translation of a file may take.")
    drain_limit: float = Field(
        30.0, ge=0, description="Seconds that running requests have when the server is told to stop."
    )
    reload_every: float = Field(2.0, ge=0, description="Seconds between looks whether a folder has changed; 0: never.")
    cache: float = Field(32.0, ge=0, description="MB of recent answers that are kept; 0: none.")
    max_beam: int = Field(
        16, ge=1, description="The widest beam, and the most samples or candidates, that a request may ask for."
    )


def settings_of(**given: Any) -> ServingSettings:
    """The settings of the command line; a value that cannot be is refused by the name of its option."""
    try:
        return ServingSettings(**given)
    except ValidationError as error:
        problem = error.errors()[0]
        option, said = str(problem["loc"][0]).replace("_", "-"), problem["msg"]
        raise SaccadeError(f"--{option}={problem['input']!r}: {said[0].lower()}{said[1:]}") from None
