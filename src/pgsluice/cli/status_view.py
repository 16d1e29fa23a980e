"""Prints a status as text."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgsluice.hints import with_config
from pgsluice.monitor.lags import utc
from pgsluice.monitor.source_status import SourceStatus
from pgsluice.monitor.spool_status import CopiesStatus, HeldSpool, SpoolStatus, TableCopyStatus
from pgsluice.monitor.status import Status, SubscriptionStatus
from pgsluice.monitor.wording import (
    STATES,
    counted,
    format_amount,
    format_bytes,
    format_count,
    format_seconds,
    state_words,
)
from pgsluice.shown import first_names, shown, shown_lines, without_table
from pgsluice.spool import TableRecord

_RECENT_S = 60.0


def show(status: Status, console: Console) -> None:
    """Print a status as text, with what each target lacks."""

    def say(line: Text | None) -> None:
        if line is not None:
            console.print(line, soft_wrap=True, highlight=False)

    say(_source_line(status.source))
    if status.source.left:
        statements = "\n           ".join(f"{statement};" for statement in status.source.left)
        needed = (
            "        new tables are not published until these statements have run\n"
            f"         → {statements}"
        )
        say(Text(shown_lines(needed), style="yellow"))
    say(_spool_line(status.spool))
    say(held_line(status.spool.held))
    say(_capture_line(status))
    for subscription in status.subscriptions:
        console.print()
        say(_subscription_line(subscription, is_known=status.spool.error is None))
        say(_copies_line(subscription.copies))
        if subscription.tables or subscription.former:
            console.print(_tables(subscription))
        for text in _reasons(subscription):
            say(text)


def _reasons(subscription: SubscriptionStatus) -> Iterator[Text]:
    yield from _waiting(subscription)
    for table in subscription.tables:
        if table.error:
            since = subscription.lag_of(table).since
            waits = "" if since is None else f"waiting since {utc(since)}: "
            error = without_table(with_config(table.error), table.title)
            yield _reason(table.title, waits + error, "red")
        for words, style in (
            (table.copy_words, "cyan"),
            (_rejects_words(table), "yellow"),
            *((why, "yellow") for why in table.incomplete),
            (_copy_words(subscription.copies.tables.get(table.target_name)), "cyan"),
            (subscription.unregistered.get(table.title), "yellow"),
            (subscription.advice.get(table.title), "cyan"),
        ):
            if words:
                yield _reason(table.title, with_config(words), style)
    for name, left in sorted(subscription.former.items()):
        yield _reason(shown(".".join(name)), with_config(left.why), "yellow")


def _rejects_words(table: TableRecord) -> str:
    if not table.rejects:
        return ""
    count = "1 value is" if table.rejects == 1 else f"{format_count(table.rejects)} values are"
    command = f"`pgsluice rejects CONFIG {shlex.quote(table.title)}`"
    return f"{count} NULL, since the column cannot hold them: {command} lists them"


def _waiting(subscription: SubscriptionStatus) -> Iterator[Text]:
    """The tables that wait without an error, grouped by reason."""
    waiting: dict[str, list[TableRecord]] = {}
    for table in subscription.tables:
        lag = subscription.lag_of(table)
        if not table.error and lag.since is not None and lag.waits_for:
            waiting.setdefault(lag.waits_for, []).append(table)
    for reason, tables in waiting.items():
        sinces = [subscription.lag_of(table).since for table in tables]
        since = utc(min(each for each in sinces if each is not None))
        names = first_names([table.title for table in tables])
        verb = "waits" if len(tables) == 1 else "wait"
        is_stopped = subscription.is_running is False or not subscription.is_enabled
        line = f"  {names} {verb} since {since}{':' if is_stopped else ' for'} {reason}"
        yield Text(shown_lines(line), style="yellow")


def _reason(title: str, why: str, style: str) -> Text:
    text = without_table(why, title).replace("\n", "\n  ")
    return Text(shown_lines(f"  {title}: {text}"), style=style)


def _source_line(source: SourceStatus) -> Text:
    text = Text("source  ", style="bold")
    slot = source.slot
    if source.error is not None:
        return text.append(shown(source.error), style="red")
    text.append(f"slot {source.slot_name} ", style="default")
    if slot is None:
        return text.append("does not exist yet", style="yellow")
    is_active = slot.active_pid is not None
    since = "" if slot.inactive_since is None else f" since {utc(slot.inactive_since)}"
    use = "active" if is_active else f"not in use{since}"
    text.append(use, style="green" if is_active else "yellow")
    text.append(f", confirmed {slot.confirmed_flush_lsn}, holds ", style="default")
    text.append(format_bytes(slot.retained_bytes), style="default")
    if slot.wal_status not in (None, "reserved"):
        text.append(f", {slot.wal_status}", style="red")
    return text


def _spool_line(spool: SpoolStatus) -> Text:
    text = Text("spool   ", style="bold")
    if spool.error is not None:
        return text.append(shown_lines(with_config(spool.error)), style="red")
    if spool.frontier is None:
        return text.append("does not exist yet", style="yellow")
    return text.append(
        f"position {spool.position}, received through {spool.frontier}, "
        f"{format_bytes(spool.bytes)} in {counted(spool.segments, 'segment')}"
        + (f", {format_bytes(spool.open_bytes)} of open transactions" * bool(spool.open_bytes)),
        style="default",
    )


def held_line(held: HeldSpool | None) -> Text | None:
    """The subscription or table that needs the spool's oldest changes; None if these are of the
    last minute."""
    if held is None or time.time() - held.since < _RECENT_S:
        return None
    of_table = f", table {held.table}" if held.table is not None else ""
    since = utc(held.since)
    return Text(
        shown(
            f"        keeps {format_bytes(held.bytes)} of changes since {since}, "
            f"for subscription {held.subscription}{of_table} at {held.position}"
        )
    )


def _capture_line(status: Status) -> Text | None:
    """Capture's problem, or that it does not run; None if it runs, or never ran."""
    capture, text = status.capture, Text("capture ", style="bold")
    if capture.message is not None:
        often = f", {capture.times} times in a row" if capture.times > 1 else ""
        message = shown_lines(
            f"{capture.phase or 'stopped'}{often}: {with_config(capture.message)}"
        )
        return text.append(message, style="yellow" if capture.is_running else "red")
    if capture.is_elsewhere:
        return text.append("runs on another machine", style="default")
    if capture.is_running or capture.reported_at is None or status.spool.frontier is None:
        return None
    text.append(f"does not run since {utc(capture.reported_at)}", style="yellow")
    if status.source.flush_lsn is not None and status.source.flush_lsn > status.spool.frontier:
        missing = format_bytes(status.source.flush_lsn - status.spool.frontier)
        text.append(f"; {missing} of the server's WAL are not received", style="yellow")
    return text


def _subscription_line(subscription: SubscriptionStatus, *, is_known: bool) -> Text:
    text = Text(shown(subscription.name), style="bold")
    if subscription.sink:
        text.append(shown(f"  {subscription.mode} → {subscription.sink}"), style="default")
    else:
        text.append("  a Spark stream", style="default")
    if subscription.sink and not subscription.is_configured:
        text.append("  not in the configuration", style="yellow")
    if not subscription.is_enabled:
        text.append("  disabled", style="yellow")
    if subscription.position is None:
        words = "not started yet" if is_known else "unknown, since the spool cannot be read"
        return text.append(f"  {words}", style="yellow")
    text.append(f"  at {subscription.position}, ", style="default")
    return _append_lag(text, subscription)


def _append_lag(text: Text, subscription: SubscriptionStatus) -> Text:
    """Append how far the subscription is behind, and whether a run is active."""
    lag_bytes, lag_s = subscription.lag_bytes, subscription.lag_s
    uncopied = sum(table.is_to_copy for table in subscription.tables)
    if lag_s:
        lag = f"{format_bytes(lag_bytes)} and " if lag_bytes is not None else ""
        text.append(f"{lag}{format_seconds(lag_s)} behind", style="default")
    elif lag_bytes is None:
        text.append("lag unknown", style="yellow")
    elif lag_bytes:
        received = f"everything received is applied, {format_bytes(lag_bytes)} not received yet"
        text.append(received, style="default")
    elif uncopied:
        text.append("no lag of copied tables", style="default")
    else:
        text.append("no lag", style="green")
    if uncopied:
        text.append(f"; {counted(uncopied, 'table')} to copy", style="default")
    if subscription.is_running is False:
        text.append("; no run is active", style="yellow")
    elif subscription.is_running is None and subscription.sink:
        text.append("; its run was started on another machine", style="default")
    return text


def _copies_line(copies: CopiesStatus) -> Text | None:
    """The progress of all copies; None if there are none, or none is planned yet."""
    if not copies.tables or not copies.all_tables:
        return None
    tables = counted(copies.all_tables, "table", copies.done)
    return Text(f"  copies: {tables}, {format_amount(copies.amount)}")


def _copy_words(copy: TableCopyStatus | None) -> str:
    """The progress of a table's copy, why it waits, and what the spool keeps for it."""
    if copy is None:
        return ""
    parts = [] if copy.amount is None else [format_amount(copy.amount)]
    parts += [f"waits for {copy.waits_for}"] if copy.waits_for else []
    if copy.held_bytes:
        parts.append(f"keeps {format_bytes(copy.held_bytes)} of changes in the spool")
    return "; ".join(parts)


def _tables(subscription: SubscriptionStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("  table")
    table.add_column("state")
    table.add_column("applied through", justify="right")
    table.add_column("lag", justify="right")
    table.add_column("rows", justify="right")
    if subscription.verified:
        table.add_column("verified through")
    for row in subscription.tables:
        state = subscription.state_of(row, row.shown_state)
        words = state_words(state, row.incomplete)
        copy = subscription.copies.tables.get(row.target_name)
        amount = None if copy is None else copy.amount
        verified = subscription.verified.get(row.target_name)
        last = "-" if verified is None else f"{verified.position}, {utc(verified.at)}"
        if amount is not None:
            words += f", {counted(amount.all_ranges, 'range', amount.ranges)}"
        table.add_row(
            Text(f"  {row.title}"),
            Text(words, style="red" if row.is_parked else "yellow" if row.incomplete else ""),
            str(row.applied_through),
            format_seconds(subscription.lag_of(row).seconds),
            format_count(row.rows if amount is None else amount.rows),
            *([last] if subscription.verified else []),
        )
    for namespace, name in sorted(subscription.former):
        table.add_row(
            Text(shown(f"  {namespace}.{name}")), Text(STATES["u"], style="yellow"), "-", "-", "-"
        )
    return table
