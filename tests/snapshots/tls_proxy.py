"""A server that speaks TLS: a proxy before one that cannot.

The servers of the environment are built without TLS. libpq asks for it by an SSLRequest, and the
proxy agrees, decrypts what the client sends, and encrypts what the server says.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator

SSL_REQUEST = bytes.fromhex("0000000804d2162f")
# Of this proxy alone; its clients do not verify it.
_KEY_AND_CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgMelQ/CZKRrLVGhlT
IDSPvgYOrKK2x8YxwTevhwuVtL2hRANCAATn+vQIeakHVUZ0rC3I/htTGo5OF5tA
TwuqKIAlV39q9KzocN/PtNwjLatATzUUNfG+HGKrzz//v4tO6U2Txrbt
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBgDCCASWgAwIBAgIUHDjcimBx4DX9jQ+3jhb/CusriR0wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyMjIzMTAzNloYDzIxMjYxMDI5
MjMxMDM2WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATn+vQIeakHVUZ0rC3I/htTGo5OF5tATwuqKIAlV39q9KzocN/PtNwj
LatATzUUNfG+HGKrzz//v4tO6U2Txrbto1MwUTAdBgNVHQ4EFgQUGcOsWHiKYlk/
szyOhmXK/E/u4PAwHwYDVR0jBBgwFoAUGcOsWHiKYlk/szyOhmXK/E/u4PAwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEAjX+w23leJDJuFu9hDAeh
fDyTRAeksgG6I3vItCfgKU8CIQDXuZk7YUO4ddV106TtRHEMw2XmO1+7JV+uS9Bc
VqtgLA==
-----END CERTIFICATE-----
"""


@contextlib.contextmanager
def tls_proxy(port: int) -> Iterator[int]:
    """A port of 127.0.0.1 where the server of another port speaks TLS with one client after the
    other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(_KEY_AND_CERTIFICATE)
        file.flush()
        context.load_cert_chain(file.name)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, context, port))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            assert client.recv(len(SSL_REQUEST)) == SSL_REQUEST
            client.sendall(b"S")
            with context.wrap_socket(client, server_side=True) as encrypted:
                _forward(encrypted, server)


def _forward(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Carry bytes in both directions until one side ends."""
    while True:
        ready = [client] if client.pending() else select.select([client, server], [], [])[0]
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            (server if source is client else client).sendall(data)
