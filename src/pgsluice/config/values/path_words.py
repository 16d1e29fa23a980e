"""Refuses paths: texts that mean something else, and targets that are the same or one in another.

A name for another program (a Databricks path, a catalog's table, a Windows drive, a shell variable)
would be created as a folder beside the configuration, and every check would pass.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

URL = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*)://")
_SCHEME = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]+):")
_WINDOWS = re.compile(r"\A(?:[A-Za-z]:|\\|[^/]*\\[^/]*\Z)")
_CATALOG_NAME = re.compile(r"\A[^/]*[\w}`\"]\.[\w{`\"][^/]*\Z")
_FIELD = re.compile(r"\{(?:schema|table)\}")


def why_no_path(value: str) -> str | None:
    """Why a text without a URL's scheme is not a path, as the rest of a sentence about its key.

    Returns:
        None if it is a path.
    """
    if value != value.strip():
        return "begins or ends with a blank"
    if _WINDOWS.match(value):
        return "is a path of Windows: pgsluice needs a path of this machine, such as /lake"
    if "$" in value.partition("/")[0]:
        return "has a variable of a shell, which is not replaced: write the folder itself"
    if match := _SCHEME.match(value):
        return _other_scheme(match[1].lower(), value[match.end() :].lstrip("/"))
    return None


def why_no_folders(template: str) -> str | None:
    """Why a template without a URL's scheme does not name folders; None: it does."""
    if _CATALOG_NAME.match(template):
        return (
            "looks like the name of a catalog's table, and is to be a folder or URL: write "
            f'"./{template}" if a folder of this name is meant'
        )
    return why_no_path(template)


def _other_scheme(scheme: str, rest: str) -> str:
    if scheme == "file":
        return f'needs three slashes after "file:", as in "file:///{rest}"'
    if scheme == "dbfs":
        return (
            'begins with "dbfs:", which only Databricks can read: name the object store itself '
            f'(s3://, abfss:// or gs://), or the mounted folder "/dbfs/{rest}"'
        )
    return (
        f'begins with "{scheme}:", which is no folder of this machine; a URL has two slashes, as '
        f'in "{scheme}://{rest}", and a folder of this name is "./{scheme}:…"'
    )


def are_entangled(first: str, second: str) -> bool:
    """Whether a table's folder by one template is the same as by the other one, or inside it.

    Links, ``..`` and ``file://`` are resolved. A fixed name is not compared with ``{table}``,
    because no table may ever have this name.

    Args:
        first, second: values of :attr:`pgsluice.config.SinkConfig.target`; only paths and URLs with
            ``{table}`` are compared.
    """
    if "{table}" not in first or "{table}" not in second:
        return False
    shorter, longer = sorted((_segments(first), _segments(second)), key=len)
    return longer[: len(shorter)] == shorter


def _segments(template: str) -> list[str]:
    url = urlsplit(template)
    if url.scheme.lower() == "file":
        template = unquote(url.path)
    elif "://" in template:
        path = os.path.normpath(url.path or "/")
        return [url.scheme.lower(), url.netloc, *_FIELD.sub("{}", path).split("/")]
    path = os.path.normpath(template)
    # Folders above the first field are the same for all tables: links in them can be resolved.
    fixed, separator, rest = path.partition("{")
    folder, _, name = fixed.rpartition("/")
    resolved = f"{Path(folder or '/').resolve()}/{name}{separator}{rest}"
    return ["file", "", *_FIELD.sub("{}", os.path.normpath(resolved)).split("/")]
