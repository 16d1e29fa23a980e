"""When whole transactions become a segment."""

from pgsluice.capture.receiving.receiver import SegmentPace


def pace() -> SegmentPace:
    """Segments of 1,000 bytes, 10 s apart; the connection began at 100 s."""
    return SegmentPace(1000, 10, now=100)


def test_a_transaction_after_a_pause_is_written_at_once():
    assert pace().is_due(110, since=110, size_bytes=1, is_drained=True)


def test_segments_are_some_time_apart():
    segments = pace()
    segments.wrote(110)
    assert not segments.is_due(119, since=111, size_bytes=999, is_drained=True)
    assert segments.next_in(119) == 1
    assert segments.is_due(120, since=111, size_bytes=1, is_drained=True)


def test_what_comes_together_shares_a_segment_for_some_time():
    assert not pace().is_due(110, since=110, size_bytes=1, is_drained=False)
    assert pace().is_due(120, since=110, size_bytes=1, is_drained=False)


def test_what_is_large_is_written_at_once():
    assert pace().is_due(100, since=100, size_bytes=1000, is_drained=False)
