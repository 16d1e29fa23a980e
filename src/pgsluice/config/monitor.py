"""``[monitor]``: where status is served and sent, and what counts as a problem."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator as After
from pydantic import Field
from pydantic import model_validator as _model_validator

from pgsluice.config.section import Seconds, Section, Size
from pgsluice.config.values.secrets import why_no_secret


def _listen(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError('has to be an address and a port, such as "127.0.0.1:9187"')
    if not host:
        raise ValueError(f'needs an address before the port, such as "127.0.0.1:{port}"')
    return value


def _webhook(value: str) -> str:
    if why_no_secret(value) is None:
        return value
    if why := why_no_webhook(value):
        raise ValueError(f'{why}, or where it is: "env:NAME" or "file:/path"')
    return value


def why_no_webhook(url: str) -> str | None:
    """Why alerts cannot be sent to a URL, to continue a sentence; None: they can.

    The URL is not shown: it often has a token. What the HTTP client would refuse is refused here,
    because its errors quote the URL.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        is_local = parts.scheme == "http" and _is_loopback(parts.hostname or "")
        is_allowed = host and (parts.scheme == "https" or is_local) and parts.port != 0
        if is_allowed and "@" not in parts.netloc and all("!" <= char <= "~" for char in url):
            return None
    except ValueError:
        pass
    return (
        "has to be an https URL (http is for loopback), in ASCII, without spaces and without a user"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class MonitorConfig(Section):
    """``[monitor]``: a page, metrics and health by HTTP, and what counts as a problem.

    Attributes:
        listen: the address and port at which ``run`` and ``capture`` serve a page, metrics and
            health, such as ``"127.0.0.1:9187"``; default: none. There is neither a password nor
            encryption.
        readers: who can reach ``listen``, in your words, such as ``"the monitoring network, by
            firewall"``: needed for an address other than loopback. They read the names of
            subscriptions and tables, where their targets are, and their errors.
        tables: whether metrics have series for each table.
        webhook: the https URL to which problems are sent as JSON, or where it is
            (``"env:NAME"``, ``"file:/path"``), since it often has a token; default: none.
        webhook_after_s: a problem is sent when it has lasted so long, in seconds.
        max_lag_s: a subscription that is further behind is a problem.
        max_slot_bytes: a slot that keeps more WAL on the server is a problem.
    """

    listen: Annotated[str, After(_listen)] | None = None
    readers: str | None = Field(default=None, min_length=1)
    tables: bool = False
    webhook: Annotated[str, After(_webhook)] | None = Field(default=None, repr=False)
    webhook_after_s: Seconds = Field(default=60.0, ge=0)
    max_lag_s: Seconds = Field(default=300.0, gt=0)
    max_slot_bytes: Size = Field(default=10 * 2**30, ge=1)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port to listen at; None: nothing is served."""
        if self.listen is None:
            return None
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect to ``listen``."""
        host = "" if self.address is None else self.address[0]
        return not host or _is_loopback(host)

    @_model_validator(mode="after")
    def _readers_are_named(self) -> MonitorConfig:
        if not self.is_local and not (self.readers or "").strip():
            raise ValueError(
                'needs "readers" for a "listen" that other machines can reach: say who can, such '
                'as "the monitoring network, by firewall"'
            )
        return self
