"""A fake of Google Cloud Storage: what clients use of its XML interface, with its conditions.

It is as strict as Google about generations: a write with ``x-goog-if-generation-match`` happens
only at that generation (0: there is no such object), under one lock. Like Google's, its deletion of
what is not there is an error. It checks no signatures.
"""

from __future__ import annotations

import hashlib
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Object(NamedTuple):
    data: bytes
    generation: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": f'"{hashlib.md5(self.data).hexdigest()}"',
            "x-goog-generation": str(self.generation),
            "Last-Modified": formatdate(1_700_000_000 + self.generation, usegmt=True),
        }


class Buckets:
    """All objects, by bucket and name."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, dict[str, _Object]] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self._generation = 0

    def make(self, name: str) -> None:
        self.objects.setdefault(name, {})

    def put(self, bucket: str, name: str, data: bytes, condition: str | None) -> _Object | None:
        """The new object; None: the condition does not hold."""
        with self.lock:
            old = self.objects[bucket].get(name)
            if condition is not None and int(condition) != (old.generation if old else 0):
                return None
            self._generation += 1
            self.objects[bucket][name] = new = _Object(data, self._generation)
            return new


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    buckets: Buckets

    def _serve(self) -> None:
        url = urlsplit(self.path)
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        query = {key: values[0] for key, values in parse_qs(url.query, True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if bucket not in self.buckets.objects:
            self._answer(404, _error("NoSuchBucket", "The specified bucket does not exist."))
        elif not name:
            self._list(bucket, query)
        elif "uploads" in query or "uploadId" in query:
            self._part(bucket, name, query, body)
        elif self.command == "PUT":
            self._put(bucket, name, body)
        else:
            self._get_or_delete(bucket, name)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - their names

    def _put(self, bucket: str, name: str, body: bytes) -> None:
        condition = self.headers.get("x-goog-if-generation-match")
        new = self.buckets.put(bucket, name, body, condition)
        if new is None:
            self._answer(412, _error("PreconditionFailed", "A condition did not hold."))
        else:
            self._answer(200, b"", new.headers)

    def _get_or_delete(self, bucket: str, name: str) -> None:
        with self.buckets.lock:
            found = self.buckets.objects[bucket].get(name)
            if found is not None and self.command == "DELETE":
                del self.buckets.objects[bucket][name]
        if found is None:
            self._answer(404, _error("NoSuchKey", "The specified key does not exist."))
        elif self.command == "DELETE":
            self._answer(204, b"")
        elif match := re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or ""):
            start, end = int(match[1]), min(int(match[2]) + 1, len(found.data))
            if start >= len(found.data):
                self._answer(416, _error("InvalidRange", "The range cannot be satisfied."))
                return
            content = f"bytes {start}-{end - 1}/{len(found.data)}"
            self._answer(206, found.data[start:end], {**found.headers, "Content-Range": content})
        else:
            self._answer(200, found.data, found.headers)

    def _part(self, bucket: str, name: str, query: dict[str, str], body: bytes) -> None:
        parts = self.buckets.parts
        if "uploads" in query:
            upload = uuid.uuid4().hex
            parts[upload] = {}
            self._answer(200, f"<Result><UploadId>{upload}</UploadId></Result>".encode())
        elif self.command == "PUT":
            parts[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, b"", {"ETag": f'"{query["partNumber"]}"'})
        elif self.command == "POST":
            whole = parts.pop(query["uploadId"])
            data = b"".join(whole[number] for number in sorted(whole))
            new = self.buckets.put(bucket, name, data, None)
            assert new is not None
            tag = f"<Result><ETag>{new.headers['ETag']}</ETag></Result>"
            self._answer(200, tag.encode(), new.headers)
        else:
            parts.pop(query["uploadId"], None)
            self._answer(204, b"")

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("start-after", "")
        found, folders = [], set()
        with self.buckets.lock:
            objects = sorted(self.buckets.objects[bucket].items())
        for name, stored in objects:
            if not name.startswith(prefix) or name <= after:
                continue
            head, cut, _ = name[len(prefix) :].partition(delimiter or "\0")
            if cut:
                folders.add(
                    f"<CommonPrefixes><Prefix>{escape(prefix + head)}/</Prefix></CommonPrefixes>"
                )
                continue
            time = "2026-01-01T00:00:00.000Z"
            found.append(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(stored.data)}</Size>"
                f"<LastModified>{time}</LastModified><ETag>{stored.headers['ETag']}</ETag>"
                "</Contents>"
            )
        text = f"<ListBucketResult>{''.join(found)}{''.join(sorted(folders))}</ListBucketResult>"
        self._answer(200, text.encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def _error(code: str, message: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


@contextmanager
def gcs_fake() -> Iterator[tuple[int, Buckets]]:
    """Its port on the loopback interface, and its buckets."""
    buckets = Buckets()
    handler = type("_Handler", (_Handler,), {"buckets": buckets})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1], buckets
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
