"""What keeps a server from strangers: where it listens, by which names, for whose pages, and how often.

- It listens on loopback unless told otherwise; elsewhere it wants keys, or to be told that anyone may come in.
- On loopback it answers to loopback's names and to those it was given: a page whose own name was made to point here
  (DNS rebinding) is refused. So is a request that a browser says comes from another site's page, unless it is listed.
- Every answer forbids browsers to guess types, to frame it, and to run anything but the page's own files.
"""

import ipaddress
import logging
import math
import re
from functools import lru_cache

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saccade.errors import SaccadeError
from saccade.serving.failures import refusal
from saccade.serving.keys import KeyRing
from saccade.serving.problems import Refused, TooMany
from saccade.serving.rates import Buckets, Rate
from saccade.serving.settings import ServingSettings

log = logging.getLogger("saccade.serving")

OPEN_RATE = "300/min"  # of an address, where anyone may come in
GUARDED = ("/v1/", "/metrics")  # by a header; LibreTranslate's calls bring their key in the body, too
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_SENT = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class NoKey(Refused):
    """A key is needed, and there is none. LibreTranslate's own answer to that is 400."""


class WrongKey(Refused):
    """A key that is nobody's."""

    status = 403


class Forbidden(Refused):
    """A request from where none may come."""

    status = 403


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_exposure(settings: ServingSettings) -> None:
    """Refuse to open a server to others by mistake."""
    for origin in settings.cors:
        if not re.fullmatch(r"[a-z][a-z0-9+.\-]*://[^/\s*?#]+", origin.lower()):
            raise SaccadeError(f"--cors {origin}: is no origin; write one like https://example.org")
    if settings.rate is not None:
        Rate.parse(settings.rate)
    if is_loopback(settings.host) or settings.keys is not None or settings.without_keys:
        return
    raise SaccadeError(
        f"--host {settings.host}: others can reach that, and no keys are set; make some with `saccade keys add` and "
        "give --keys FILE, or say --without-keys to let anyone in"
    )


class Guard:
    """Who may ask, and how often."""

    def __init__(self, settings: ServingSettings) -> None:
        check_exposure(settings)
        self.ring = None if settings.keys is None else KeyRing(settings.keys)
        self._buckets = Buckets()
        rate = settings.rate if is_loopback(settings.host) or settings.rate else OPEN_RATE
        self._rate = None if rate is None else Rate.parse(rate)

    @property
    def needs_key(self) -> bool:
        return self.ring is not None

    def admit(self, request: Request, token: str | None = None) -> str:
        """The name that a client's share is counted by; `token`: a key that came with the body.

        What is refused is a `Refused`: no key, a wrong one, or too many requests.
        """
        # What a middleware left; a request is counted once.
        state = request.scope.setdefault("state", {})
        if "client" not in state:
            state["client"] = self._client_of(request, token)
        return str(state["client"])

    def _client_of(self, request: Request, token: str | None) -> str:
        address = request.scope["client"][0] if request.scope.get("client") else ""
        if self.ring is None:
            return self._counted(f"address {address}", self._rate)
        token = token or _token_of(request.headers)
        if token is None:
            self._counted(f"without a key {address}", Rate.parse(OPEN_RATE))
            raise NoKey("Please contact the server operator to get an API key")
        holder = self.ring.holder(token)
        if holder is None:
            self._counted(f"without a key {address}", Rate.parse(OPEN_RATE))
            raise WrongKey("Invalid API key")
        return self._counted(f"key {holder.name}", holder.rate)

    def _counted(self, client: str, rate: Rate | None) -> str:
        wait = None if rate is None else self._buckets.take(client, rate)
        if wait is not None:
            raise TooMany(
                f"Slowdown: more than {rate.requests:,} requests in {rate.seconds:,} seconds; wait a little",  # type: ignore[union-attr]
                max(1, math.ceil(wait)),
            )
        return client


def _token_of(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return (token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")) or None


def protect(app: FastAPI, settings: ServingSettings) -> None:
    """Put an application behind all of this; its `state.guard` is for calls that bring a key in their body."""
    guard = Guard(settings)
    app.state.guard = guard
    app.add_middleware(_Keys, guard=guard)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
            expose_headers=["Retry-After"],
        )
    app.add_middleware(_Doors, settings=settings)


class _Keys:
    """Asks for a key in the header before the body of a request is read."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self.app, self.guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GUARDED):
            try:
                self.guard.admit(Request(scope))
            except Refused as refused:
                await refusal(refused)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class SecurityHeaders:
    """The outermost part of an application: what every answer tells a browser."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in _SENT if header[0] not in own)]
            await send(message)

        await self.app(scope, receive, guarded if scope["type"] == "http" else send)


class _Doors:
    """Names by which the server is asked, and the pages that ask."""

    def __init__(self, app: ASGIApp, settings: ServingSettings) -> None:
        self.app = app
        self.origins = {origin.lower() for origin in settings.cors}
        self.names = {_name_of(name) for name in settings.hosts}
        self.any_name = not is_loopback(settings.host) and not self.names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(Headers(scope=scope), scope["method"]) if scope["type"] == "http" else None
        if refused is None:
            await self.app(scope, receive, send)
        else:
            await refusal(refused)(scope, receive, send)

    def _refused(self, headers: Headers, method: str) -> Refused | None:
        host = headers.get("host", "")
        name = _name_of(host)
        if not (self.any_name or name in self.names or is_loopback(name)):
            return Forbidden(f"Host: {host[:100]!r} is not a name of this server; add it with --allowed-host")
        origin = headers.get("origin", "").lower()
        if not origin or origin in self.origins or (method in ("GET", "HEAD") and origin != "null"):
            return None
        if origin.partition("://")[2] == host.lower():
            return None
        return Forbidden(f"Origin: pages of {origin[:100]!r} may not call this server; list them with --cors")


def _name_of(host: str) -> str:
    """A Host header without its port."""
    host = host.lower()
    if host.startswith("["):
        return host.partition("]")[0][1:]
    return host.partition(":")[0].rstrip(".")
