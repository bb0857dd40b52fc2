"""Checks before every route: the host name, the page that calls, the token, and the size.

A foreign page can make a browser call 127.0.0.1, by its address or by a name that suddenly resolves to it (DNS
rebinding). So a request must name a host of ours, and a browser's request must come from our own page.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from vitreous.server.errors import Busy, Refusal
from vitreous.server.limits import Limits
from vitreous.server.metrics import Counts

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
log = logging.getLogger("vitreous.server")
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
PERMISSIONS = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()"
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": PERMISSIONS,
    "cache-control": "no-store",
}
DRAIN_FACTOR = 4  # a refused upload is read up to this many limits, so that its sender sees why


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may call. is_local: only under this machine's loopback names. names: further names of the server."""

    is_local: bool = True
    names: frozenset[str] = frozenset()
    token: str | None = None

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server. DNS cannot rebind an address, so a network may use any."""
        name = _host_name(host)
        if name == "localhost" or name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self.is_local

    def admits(self, authorization: str) -> bool:
        """Whether the token is right, compared in constant time."""
        if self.token is None:
            return True
        word, _, given = authorization.partition(" ")
        return hmac.compare_digest(given.strip().encode(), self.token.encode()) and word.lower() == "bearer"


class Guard:
    """Wraps an ASGI application."""

    def __init__(self, app: App, access: Access, limits: Limits, counts: Counts, routes: Mapping[str, str]):
        self.app, self.access, self.limits, self.counts = app, access, limits, counts
        self.routes = routes  # path -> its name in the metrics
        self._in_flight = 0  # announced bytes; only the event loop's thread changes it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        start, status, announced = time.monotonic(), 500, 0

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in given)]
            await send(message)

        limited = self._limited(receive)
        scope["vitreous.start"] = start
        try:
            announced = self._check(scope)
            self._in_flight += announced
            await self.app(scope, limited, sending)
        except Refusal as refusal:
            await self._drain(receive)
            await refuse(refusal, sending)
        except Exception:  # app._unexpected has answered and logged it
            log.debug("after an error", exc_info=True)
        finally:
            self._in_flight -= announced
            self.counts.add(self.routes.get(scope["path"], "other"), status, time.monotonic() - start)

    def _check(self, scope: Scope) -> int:
        """Refuse a request that must not pass; return the bytes it announces."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not self.access.knows(headers.get("host", "")):
            raise Refusal(421, "the server does not answer to that name; use the address that it printed")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_foreign = origin is not None and origin.partition("://")[2] != headers.get("host")
        if is_foreign or (site not in ("none", "same-origin") and scope["path"].startswith("/api")):
            raise Refusal(403, "a page from another address may not call this server; open the server's own page")
        is_closed = scope["path"].startswith("/api/") or scope["path"] == "/metrics"
        if is_closed and not self.access.admits(headers.get("authorization", "")):
            raise Refusal(
                401, "the token is missing or wrong; send Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
            )
        length = headers.get("content-length", str(self.limits.upload) if "transfer-encoding" in headers else "0")
        if not length.isascii() or not length.isdigit() or int(length) > self.limits.upload:
            raise self._too_much()
        if int(length) and self._in_flight + int(length) > self.limits.in_flight:
            raise Busy("too many bytes are being uploaded at once; try again later", after=2)
        return int(length)

    def _limited(self, receive: Receive) -> Receive:
        """`receive` with limits on bytes and seconds."""
        taken, until = 0, time.monotonic() + self.limits.seconds

        async def limited() -> MutableMapping[str, Any]:
            nonlocal taken
            if taken < 0:
                return await receive()  # the body is complete; only a disconnect can follow
            try:
                message = await asyncio.wait_for(receive(), max(until - time.monotonic(), 0.001))
            except TimeoutError:
                raise Refusal(
                    408, f"the request took more than {self.limits.seconds:g} s to arrive; send it faster, or send less"
                ) from None
            taken += len(message.get("body", b""))
            if taken > self.limits.upload:
                raise self._too_much()
            if not message.get("more_body", False):
                taken = -1
            return message

        return limited

    def _too_much(self) -> Refusal:
        return Refusal(413, f"one request takes at most {self.limits.upload / 2**20:g} MiB; shrink or split it")

    async def _drain(self, receive: Receive) -> None:
        """Read the rest of an upload: otherwise its sender sees a broken connection, not our line."""
        taken = 0
        try:
            async with asyncio.timeout(2):
                while taken < DRAIN_FACTOR * self.limits.upload:
                    message = await receive()
                    taken += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return


async def refuse(refusal: Refusal, send: Send) -> None:
    """Answer with the line of a refusal."""
    body = json.dumps({"error": refusal.line}, ensure_ascii=False).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _host_name(host: str) -> str:
    """The host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()
