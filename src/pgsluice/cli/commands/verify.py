"""``pgsluice verify``: compare tables with their targets at one position.

The exit code is 0 if all tables are equal, and 1 if rows differ, versions of a history overlap, or
a published table could not be compared. An active ``pgsluice run`` continues meanwhile; without
one, this command applies the missing changes. With ``--repair``, repaired tables count as equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgsluice.cli.options import (
    ConfigArgument,
    DebugOption,
    JsonOption,
    SubscriptionOption,
    TablesArgument,
)
from pgsluice.cli.output import say, say_json
from pgsluice.cli.signals import stop_on_signals
from pgsluice.config import Config, SubscriptionConfig, load_config
from pgsluice.config.model import LEAST_RATE
from pgsluice.config.values.quantities import parse_size
from pgsluice.config.values.table_names import table_named
from pgsluice.errors import ConfigError, ExitCode
from pgsluice.hints import copy_again, with_config
from pgsluice.shown import shown

if TYPE_CHECKING:
    from pgsluice.subscription.verify import VerifiedTable


def verify(
    config: ConfigArgument,
    tables: TablesArgument = None,
    subscription: SubscriptionOption = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=64, help="tables to compare at the same time")
    ] = 4,
    keys: Annotated[
        int, typer.Option("--keys", min=1, help="differing keys of each kind to list for a table")
    ] = 10,
    sample: Annotated[
        float, typer.Option("--sample", min=0.0001, max=1, help="the part of the keys to compare")
    ] = 1.0,
    rate: Annotated[
        str | None, typer.Option("--rate", help="read so much a second, such as 20MiB")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="read the rows again that differ, and replace them")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare tables with their targets at one position."""
    from pgsluice.cli.copy_request import repair_tables
    from pgsluice.subscription.verify import Verification
    from pgsluice.subscription.verify import verify as verify_subscription
    from pgsluice.verification import Extent

    loaded, most = load_config(config), _rate(rate)
    results: list[VerifiedTable] = []
    with stop_on_signals() as request:
        for chosen, own in chosen_tables(loaded, subscription, tables or []):
            extent = Extent(sample, most, request.event.is_set)
            options = Verification(
                own, sessions=jobs, max_keys=keys, stop=request.event, extent=extent
            )
            compared = verify_subscription(loaded, chosen, options)
            if repair and not request.exit_code:
                compared = repair_tables(loaded, chosen, compared, request.event)
            results += compared
            if request.exit_code:
                raise typer.Exit(request.exit_code)
    if as_json:
        say_json([_to_json(result) for result in results])
    else:
        for result in results:
            say(_line(result, len(loaded.subscriptions) > 1))
    if any(result.is_failure for result in results):
        raise typer.Exit(ExitCode.FAILED)


def _rate(text: str | None) -> int | None:
    """The bytes per second that the option gives."""
    if text is None:
        return None
    try:
        rate = parse_size(text)
    except ValueError as error:
        raise ConfigError(f"--rate {error}") from None
    if rate < LEAST_RATE:
        raise ConfigError("--rate has to be 1 MiB or more")
    return rate


def chosen_tables(
    config: Config, name: str | None, given: list[str]
) -> list[tuple[SubscriptionConfig, list[str]]]:
    """The subscriptions, each with the requested tables that it has.

    Raises:
        ConfigError: none is enabled, or none has a table.
    """
    from pgsluice.spool import find_record

    candidates = (
        [candidate for candidate in config.subscriptions if candidate.enabled]
        if name is None
        else [config.subscription(name)]
    )
    if not candidates:
        raise ConfigError("there is no enabled subscription")
    if not given:
        return [(candidate, []) for candidate in candidates]
    known = {
        candidate.name: {
            table.target_name for table in (*record.tables.values(), *record.unpublished.values())
        }
        for candidate in candidates
        if (record := find_record(config.spool.place, candidate.name)) is not None
    }
    names = frozenset().union(*known.values())
    meant = [table_named(one, names, f"no subscription has a table {one}") for one in given]
    owned = [
        (candidate, [shown(".".join(one)) for one in meant if one in known.get(candidate.name, ())])
        for candidate in candidates
    ]
    return [(candidate, own) for candidate, own in owned if own]


def _line(result: VerifiedTable, has_subscription: bool) -> str:
    prefix = f"{result.subscription}: " if has_subscription else ""
    if result.comparison is None:
        return f"{prefix}{result.title}: not compared: {result.reason}"
    text = f"{prefix}{result.title}: "
    if keys := result.overlapping:
        of_keys = "1 key" if keys == 1 else f"{keys} keys"
        copy = with_config(copy_again(result.title))
        text += (
            f"VERSIONS OVERLAP of {of_keys}, and no copy mends closed ones (to begin another "
            f"history, move the target away; then {copy}); current rows: "
        )
    if result.comparison.equal:
        rows = result.comparison.source.rows
        count = "1 row" if rows == 1 else f"{rows} rows"
        if (sampled := result.comparison.sampled) < 1:
            count += f" of a sample of {sampled:.2%}"
        return f"{text}equal at {result.position}, {count}"
    text += f"DIFFERS at {result.position}: {result.comparison.differences}"
    if result.repaired_at is not None:
        done = "all rows copied again" if result.is_copied else "repaired"
        return f"{text}; {done} at {result.repaired_at}"
    return text if result.not_repaired is None else f"{text}; not repaired: {result.not_repaired}"


def _to_json(result: VerifiedTable) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "subscription": result.subscription,
        "table": result.title,
        "position": str(result.position),
        "equal": result.comparison.equal if result.comparison is not None else None,
        "published": result.is_published,
        "reason": result.reason,
    }
    if (comparison := result.comparison) is not None:
        raw |= {
            "source_rows": comparison.source.rows,
            "target_rows": comparison.target.rows,
            "source_hash": comparison.source.content_hash,
            "target_hash": comparison.target.content_hash,
            "missing_keys": comparison.missing_keys,
            "extra_keys": comparison.extra_keys,
            "differing_keys": comparison.differing_keys,
            "has_more": comparison.has_more,
            "sampled": comparison.sampled,
            "repaired_at": None if result.repaired_at is None else str(result.repaired_at),
            "is_copied": result.is_copied,
            "not_repaired": result.not_repaired,
            "overlapping_keys": result.overlapping,
        }
    return raw
