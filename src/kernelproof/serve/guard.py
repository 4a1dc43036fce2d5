"""Who may ask what: the address asked for, the token, where a form came from, and what a browser
may do with an answer."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import ipaddress
import secrets
import socket
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelproof.errors import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHORTEST_TOKEN = 16
COOKIE = "kernelproof"
_READS = ("GET", "HEAD")
_NO_FETCH = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
_PLAIN = f"{_NO_FETCH}; img-src data:; style-src 'self'; script-src 'self'; connect-src 'self'"
# The plotting library builds functions from text, and styles its elements.
_CHARTS = (
    f"{_NO_FETCH}; img-src data: blob:; worker-src blob:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-eval' 'nonce-{}'"
)
# Of the self-contained report, whose scripts stand in it: it is kept apart from this site.
SELF_CONTAINED = (
    "sandbox allow-scripts; default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:"
    " blob:; worker-src blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": with that browsers hide where a form comes from.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclasses.dataclass(frozen=True)
class Access:
    """What a server is started with. ``host``: the address it listens on. ``names``: further names
    by which it may be asked for.

    Raises:
        UsageError: an address that others reach and no token, or one that is easily guessed.
    """

    host: str = LOOPBACK[0]
    token: str | None = None
    allow_submit: bool = False
    names: tuple[str, ...] = ()
    # Of this run of the server: what its forms carry.
    secret: str = dataclasses.field(default_factory=secrets.token_urlsafe, repr=False)

    def __post_init__(self) -> None:
        make = "`--token \"$(python3 -c 'import secrets; print(secrets.token_urlsafe())')\"` does"
        if self.token is None and not self.loopback:
            raise UsageError(
                f"--host {self.host}: whoever reaches this address would see the store"
                f"{' and run code on this machine' if self.allow_submit else ''}; give a token: "
                f"{make}, or KERNELPROOF_TOKEN; without --host only this machine is served"
            )
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise UsageError(
                f"--token has {len(self.token)} characters; at least {SHORTEST_TOKEN} are needed, "
                f"so that nobody guesses it: {make}"
            )

    @property
    def loopback(self) -> bool:
        return self.host in LOOPBACK

    def answers_to(self, name: str) -> bool:
        """Whether this server is the one asked for. A page of somebody else's whose name leads here
        (DNS rebinding) asks by that name: on loopback only its own are answered, elsewhere also
        addresses, which are nobody's name, and what this machine is called."""
        name = name.lower().rstrip(".")
        if name in LOOPBACK or name in {one.lower() for one in self.names}:
            return True
        if self.loopback:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {self.host.lower(), socket.gethostname().lower(), _full_name()}
        return True

    def knows(self, token: str) -> bool:
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    @property
    def cookie(self) -> str:
        """What a browser keeps: not the token itself, and of no use after a restart."""
        return hmac.digest(self.secret.encode(), (self.token or "").encode(), "sha256").hex()


class Guard:
    """Asks before every request; adds its headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope)
        scope["nonce"] = secrets.token_urlsafe()

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                rule = _CHARTS.format(scope["nonce"]) if scope.get("charts") else _PLAIN
                headers.setdefault("Content-Security-Policy", rule)
            await send(message)

        refused = self._refused(request)
        await (refused or self.app)(scope, receive, with_headers)

    def _refused(self, request: Request) -> Response | None:
        """The answer to a request that may not go on."""
        asked = request.headers.get("host", "")
        if not self.access.answers_to(_name_of(asked)):
            text = f"this server does not answer to {asked!r}; ask for it by its address"
            return PlainTextResponse(f"{text}, or start it with --name\n", 421)
        if (answer := self._unknown(request)) is not None:
            return answer
        if request.method not in _READS:
            return self._unwanted(request)
        return None

    def _unknown(self, request: Request) -> Response | None:
        """None for whoever has the token. In an address it is taken once, and kept as a cookie."""
        access = self.access
        if access.token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and request.method in _READS and access.knows(given):
            rest = [(k, v) for k, v in request.query_params.multi_items() if k != "token"]
            to = request.url.path + (f"?{urlencode(rest)}" if rest else "")
            # Of one slash: two would lead to another machine.
            answer = RedirectResponse("/" + to.lstrip("/"), 303)
            answer.set_cookie(COOKIE, access.cookie, httponly=True, samesite="lax", path="/")
            return answer
        kept = request.cookies.get(COOKIE, "")
        if hmac.compare_digest(kept.encode(), access.cookie.encode()):
            return None
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and access.knows(bearer.strip()):
            return None
        text = "a token is needed: open this address once with ?token=TOKEN, or send the header"
        wants = {"WWW-Authenticate": "Bearer"}
        return PlainTextResponse(f"{text} Authorization: Bearer TOKEN\n", 401, headers=wants)

    def _unwanted(self, request: Request) -> Response | None:
        """None for what was sent from one of our own pages, or by a program."""
        if request.method != "POST":
            return PlainTextResponse(f"no {request.method} here\n", 405)
        if not self.access.allow_submit:
            text = "this server is read-only; `kernelproof serve --allow-submit` takes candidates"
            return PlainTextResponse(f"{text}\n", 403)
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        own = request.headers.get("host", "")
        if origin is not None and urlsplit(origin).netloc != own:
            return PlainTextResponse(f"sent from {origin!r}, not from a page of this server\n", 403)
        if site is not None and site not in ("same-origin", "none"):
            return PlainTextResponse(f"sent from another site ({site})\n", 403)
        return None


def form_key(access: Access, page: str) -> str:
    """What a form on ``page`` carries, which no other site can know."""
    return hmac.digest(access.secret.encode(), page.encode(), hashlib.sha256).hex()


def form_is_ours(access: Access, page: str, key: str) -> bool:
    return hmac.compare_digest(key.encode(), form_key(access, page).encode())


def _name_of(host: str) -> str:
    """Without the port: ``localhost`` of ``localhost:8000``, ``::1`` of ``[::1]:8000``."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _full_name() -> str:
    return socket.getfqdn().lower()
