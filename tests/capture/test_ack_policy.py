"""What may be acknowledged: any order of events, against the one rule that must hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgsluice.capture.receiving.ack_policy import AckPolicy
from pgsluice.lsn import Lsn

EVENTS = st.lists(
    st.sampled_from(["begin", "commit", "hand over", "store", "keepalive", "frontier", "status"]),
    max_size=60,
)


@given(EVENTS, st.booleans())
def test_nothing_is_acknowledged_that_is_not_durable(events, is_eager):
    """A model of a connection: commits wait, are handed over in order, become durable."""
    progress = AckPolicy(Lsn(0), is_eager=is_eager)
    submitted = done = 0
    is_open = False
    waiting: list[int] = []
    handed: list[list[int]] = []
    durable = 0
    for now, event in enumerate(events, start=1):
        lsn = 10 * now
        if event == "begin":
            is_open = True
        elif event == "commit" and is_open:
            is_open = False
            waiting.append(lsn)
        elif event == "hand over" and waiting:
            handed.append(waiting)
            waiting = []
            submitted += 1
            progress.wrote()
        elif event == "store" and handed:
            durable = max(durable, handed.pop(0)[-1])
            done += 1
        elif event == "keepalive":
            progress.keepalive(
                Lsn(lsn),
                after_command=submitted + bool(waiting),
                is_held=is_open,
                wants_reply=False,
            )
        elif event == "frontier" and not waiting:
            due = progress.frontier_due(now, done_command=done, durable=Lsn(durable))
            if due is not None:
                not_durable = [commit for step in handed for commit in step] + waiting
                assert all(commit > due for commit in not_durable)
                durable = max(durable, due)
        elif event == "status":
            assert progress.sent(now, Lsn(durable)) <= durable


def test_status_goes_out_in_time_at_once_when_asked_and_soon_after_new_data():
    progress = AckPolicy(Lsn(100))
    progress.sent(0.0, Lsn(100))
    assert not progress.status_due(9.9, Lsn(100))
    assert progress.status_due(10.0, Lsn(100))
    assert not progress.status_due(0.5, Lsn(200))
    assert progress.status_due(1.0, Lsn(200))
    progress.keepalive(Lsn(300), after_command=0, is_held=False, wants_reply=True)
    assert progress.status_due(0.1, Lsn(100))


def test_an_idle_frontier_is_written_at_most_once_in_ten_seconds():
    progress = AckPolicy(Lsn(0))
    durable = Lsn(0)
    written = []
    for second in range(1, 25):
        progress.keepalive(Lsn(second), after_command=0, is_held=False, wants_reply=False)
        due = progress.frontier_due(float(second), done_command=0, durable=durable)
        if due is not None:
            durable = due
            written.append(second)
    assert written == [1, 11, 21]


def test_a_transaction_that_is_coming_in_holds_the_frontier():
    progress = AckPolicy(Lsn(0), is_eager=True)
    progress.keepalive(Lsn(50), after_command=0, is_held=True, wants_reply=False)
    assert progress.frontier_due(1.0, done_command=0, durable=Lsn(0)) is None
