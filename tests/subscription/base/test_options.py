"""What a subscription's configuration means for its copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.config import parse_config
from pgsluice.subscription.base.options import copy_tasks_beside_stream


@pytest.mark.parametrize(
    ("copy_cores", "cores", "tasks"),
    [
        (None, 1, 1),
        (None, 2, 1),
        (None, 5, 2),
        (1, 8, 1),
        (2, 2, 2),
        (8, 2, 2),
    ],
)
def test_copies_beside_a_stream_queue_no_tasks_in_front_of_it(
    copy_cores: int | None, cores: int, tasks: int
) -> None:
    """A task that waits for a core keeps the stream's next one waiting, too."""
    text = (
        '[source]\ndsn = "host=db"\nslot = "s"\n[spool]\npath = "/var/spool"\n[[subscription]]\n'
        'name = "lake"\nsink = { type = "delta", path = "l/{table}" }\n'
    )
    if copy_cores is not None:
        text += f"copy_cores = {copy_cores}\n"
    (subscription,) = parse_config(text, Path("/etc/pgsluice.toml")).subscriptions
    assert copy_tasks_beside_stream(subscription, cores) == tasks
