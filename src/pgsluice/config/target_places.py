"""Whether the target paths of two subscriptions are the same, or one is inside the other."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FIELD = re.compile(r"\{(?:schema|table)\}")


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
