"""Errors of object stores as text: which bucket has which problem, and how to solve it.

A client's own text may contain a signed URL, and pages of internal state. So only the store's code
and message are used.
"""

from __future__ import annotations

import errno
import html
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from obstore.exceptions import BaseError

from pgsluice.shown import one_line
from pgsluice.stores.addresses import Address
from pgsluice.stores.contract import StoreError

_MESSAGE_CHARACTERS = 300


class _Trouble(NamedTuple):
    """A kind of error.

    Attributes:
        pattern: a pattern for the client's text.
        what: a sentence, which may contain ``{root}``, ``{doing}`` and ``{machine}``.
        hint: how to solve it.
    """

    pattern: str
    what: str
    hint: str


_TROUBLES = (
    _Trouble(
        r"169\.254\.\d+\.\d+|metadata\.google|http://metadata/|Missing(AccessKeyId|SecretAccessKey)"
        r"|MissingCredentials|OpenCredentials|computeMetadata",
        "no credentials for {root} were found on {machine}",
        "give pgsluice there the cloud's usual environment variables, a profile or a role, or set "
        "storage_options",
    ),
    _Trouble(
        r"NoSuchBucket|ContainerNotFound|InvalidBucketName|bucket does not exist",
        "{root} does not exist",
        "make it, or correct the path; pgsluice makes none",
    ),
    _Trouble(
        r"AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraint|redirect without"
        r"|status code: 30[17]|InvalidRegion|region .* is wrong",
        "{root} is in another region",
        'set its region, as in storage_options = {{ aws_region = "eu-central-1" }}, or AWS_REGION',
    ),
    _Trouble(
        r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|TokenRefreshRequired"
        r"|AuthenticationFailed|InvalidAuthenticationInfo|invalid_grant|InvalidSecurity|DecodeKey"
        r"|InvalidAccessKey|DecodeCredentials|failed to authenticate|UnauthenticatedError"
        r"|AdminUserNotFound"
        r"|status code: 401",
        "the store does not accept the credentials for {root} of {machine}",
        "check the keys, and that they have not expired",
    ),
    _Trouble(
        r"RequestTimeTooSkewed|RequestExpired",
        "the clock of {machine} differs too much from the store's of {root}",
        "set the clock",
    ),
    _Trouble(
        r"SlowDown|TooManyRequests|ServerBusy|status code: (429|503)|rateLimitExceeded",
        "the store of {root} takes no more requests for now, or is busy",
        "",
    ),
    _Trouble(
        r"QuotaExceeded|QuotaLimitExceeded|InsufficientStorage|XMinioStorageFull|status code: 507",
        "no room is left in {root}",
        "make room there, or raise the quota",
    ),
    _Trouble(
        r"PermissionDenied|status code: 403",
        "the credentials of {machine} may not {doing} {root}",
        "give them the rights to read, write, list and delete there",
    ),
    _Trouble(
        r"BadScheme|URL scheme is not allowed",
        "the endpoint of {root} has plain http, which is not allowed",
        'set allow_http = "true" in storage_options if it is meant',
    ),
    _Trouble(
        r"kind: Timeout|TimedOut|operation timed out",
        "the store of {root} did not answer in time",
        "",
    ),
    _Trouble(r"status code: 5\d\d", "the store of {root} fails", ""),
    _Trouble(
        r"kind: (Connect|Request|Interrupted|Decode)|HttpError|error sending request",
        "the store of {root} cannot be reached from {machine}",
        "check the network, the endpoint and the proxy",
    ),
    _Trouble(
        r"UnknownConfigurationKey|Configuration key|Duplicate key|failed to parse"
        r"|MissingAccount|InvalidEndpoint|Unable to parse",
        "storage_options do not fit {root}",
        "docs/configuration.md has the names",
    ),
)
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_ENDPOINT = re.compile(r"(https?://[^/\s?@]+)/")
_CONNECTION = re.compile(r'message: "([^"]*)"')
_OPTION = re.compile(r"Configuration key: \S+|Duplicate key \S+|failed to parse|Account must")
_NO_SUCH_FILE = ("NoSuchKey", "BlobNotFound", "ResourceNotFound", "NoSuchVersion")
"""Codes of status 404 for missing files; other codes concern the bucket, an upload or keys. A HEAD
has no code."""


@contextmanager
def in_words(address: Address, doing: str, name: str = "") -> Iterator[None]:
    """A context that turns errors of the client into ours; a missing name becomes
    ``FileNotFoundError``. ``doing``: a verb for the sentence "may not … s3://bucket"."""
    try:
        yield
    except FileNotFoundError as error:
        code = _CODE.search(str(error))
        if code is None or code[1] in _NO_SUCH_FILE:
            place = f"{address.root}/{address.prefix}{name}"
            raise FileNotFoundError(errno.ENOENT, "no such file", place) from None
        raise _in_words(error, address, doing) from None
    except BaseError as error:
        raise _in_words(error, address, doing) from None


def _in_words(error: Exception, address: Address, doing: str) -> StoreError:
    # The type's name tells a refusal from others.
    text = f"{type(error).__name__} {error}"
    trouble = next((kind for kind in _TROUBLES if re.search(kind.pattern, text)), None)
    words = {"root": address.root, "doing": doing, "machine": socket.gethostname()}
    if trouble is None:
        first = str(error).partition("\n")[0]
        what, hint = "pgsluice could not {doing} {root}", ""
        details = _of_the_store(text) or [_without_queries(first)]
    else:
        what, hint = trouble.what, trouble.hint
        details = _of_the_store(text)
    return StoreError(what.format(**words), details=details, hint=hint.format(**words) or None)


def _of_the_store(text: str) -> list[str]:
    """The store's own code and message, else the network's error; may be empty."""
    if code := _CODE.search(text):
        message = _MESSAGE.search(text)
        parts = [part.group(1).strip() for part in (code, message) if part]
        return [_without_queries(html.unescape(": ".join(parts)))]
    if status := re.search(r"status code: (\d+ [A-Za-z ]+)", text):
        return [status.group(1)]
    if key := _OPTION.search(text):
        return [one_line(text[key.start() :].partition("\n")[0])]
    endpoint, cause = _ENDPOINT.search(text), _CONNECTION.search(text)
    words = ": ".join(match.group(1) for match in (endpoint, cause) if match)
    return [words] if words else []


def _without_queries(text: str) -> str:
    """The text as one line, without signed parts of URLs."""
    return one_line(re.sub(r"\?\S*", "?…", text))[:_MESSAGE_CHARACTERS]
