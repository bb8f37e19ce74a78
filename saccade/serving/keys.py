"""API keys in a file: shown once, kept as hashes, each with its rate.

A key is 256 random bits, so nobody guesses one from its SHA-256; a slow hash is for passwords, which people choose, and
every request would pay for it. Hashes are compared in constant time, all of them at each request.
"""

import hashlib
import hmac
import json
import logging
import re
import secrets
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from saccade.errors import SaccadeError
from saccade.files import write_text, writing
from saccade.serving.rates import Rate

log = logging.getLogger("saccade.serving")
_MARK = "sk-"


class Key(BaseModel):
    """What is kept of a key."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=100)
    hash: str = Field(pattern="^[0-9a-f]{64}$")
    rate: str | None = None
    created: str = ""

    @field_validator("rate")
    @classmethod
    def _a_rate(cls, rate: str | None) -> str | None:
        if rate is not None:
            try:
                Rate.parse(rate)
            except SaccadeError as error:
                raise ValueError(str(error)) from None
        return rate


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[Key]


class Holder(NamedTuple):
    """Whose key it is."""

    name: str
    rate: Rate | None


def read_keys(path: Path) -> list[Key]:
    """The keys of a file; a damaged one is named, with the remedy."""
    try:
        return _File.model_validate_json(path.read_bytes()).keys
    except FileNotFoundError:
        raise SaccadeError(f"{path}: there is no such file of keys; make one with `saccade keys add`") from None
    except OSError as error:
        raise SaccadeError(
            f"{path}: cannot be read ({error.strerror}); it must be a file that belongs to the user who serves"
        ) from None
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise SaccadeError(f"{path}: is no file of keys ({why}); mend it, or make a new one") from None


def write_keys(path: Path, keys: list[Key]) -> None:
    """Write a file of keys that only its owner may read."""
    with writing(path):
        write_text(path, json.dumps({"keys": [key.model_dump() for key in keys]}, indent=1, ensure_ascii=False) + "\n")
        path.chmod(0o600)


def add_key(path: Path, name: str, rate: str | None = None) -> str:
    """Make a key, put it into the file, and give it out: it is nowhere else."""
    keys = read_keys(path) if path.exists() else []
    if any(key.name == name for key in keys):
        raise SaccadeError(f"--name {name}: {path} has a key of that name; choose another, or revoke it first")
    if not re.fullmatch(r"[^\x00-\x1f]{1,100}", name):
        raise SaccadeError(f"--name {name!r}: a name has 1 to 100 characters, all of them visible")
    if rate is not None:
        Rate.parse(rate)
    token = _MARK + secrets.token_urlsafe(32)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_keys(path, [*keys, Key(name=name, hash=hash_of(token), rate=rate, created=now)])
    return token


def revoke_key(path: Path, name: str) -> None:
    """Take a key out of the file."""
    keys = read_keys(path)
    rest = [key for key in keys if key.name != name]
    if len(rest) == len(keys):
        known = ", ".join(key.name for key in keys) or "none"
        raise SaccadeError(f"{name}: {path} has no key of that name; it has: {known}")
    write_keys(path, rest)


def hash_of(token: str) -> str:
    """What is kept instead of a key."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class KeyRing:
    """The keys of a file as they are now: it is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys = read_keys(path)
        self._stamp = self._look()

    def holder(self, token: str) -> Holder | None:
        """Whose key this is; None: nobody's."""
        self._read_again()
        given = hash_of(token)
        found: Key | None = None
        for key in self._keys:  # all of them, so that time tells nothing
            if hmac.compare_digest(key.hash, given):
                found = key
        return None if found is None else Holder(found.name, None if found.rate is None else Rate.parse(found.rate))

    def _read_again(self) -> None:
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:
            log.warning("file of keys is gone: no key is taken", extra={"fields": {"file": str(self.path)}})
            self._keys = []
            return
        try:
            self._keys = read_keys(self.path)
        except SaccadeError as error:  # half written by hand, perhaps: what was known goes on
            log.warning("file of keys not read", extra={"fields": {"why": str(error)}})

    def _look(self) -> tuple[int, int, int] | None:
        try:
            now = self.path.stat()
        except OSError:
            return None
        return now.st_mtime_ns, now.st_size, now.st_ino
