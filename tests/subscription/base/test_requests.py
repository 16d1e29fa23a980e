"""Requests of other commands to a subscription that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.subscription.base.requests import CopyRequest, pending_requests, request_copy


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"7", b'{"copy": "x"}', b"\xff"])
def test_a_file_that_is_no_request_is_set_aside(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    request = request_copy(tmp_path, 7)
    damaged = request.with_name("damaged.json")
    damaged.write_bytes(content)
    assert pending_requests(tmp_path) == [CopyRequest(request, 7)]
    assert pending_requests(tmp_path) == [CopyRequest(request, 7)]
    aside = damaged.with_suffix(".invalid")
    assert aside.read_bytes() == content
    assert [str(aside) in message for message in caplog.messages] == [True]


def test_a_request_may_ask_for_the_configuration_to_be_read_again(tmp_path: Path) -> None:
    request = request_copy(tmp_path, 7, has_other_settings=True)
    assert pending_requests(tmp_path) == [CopyRequest(request, 7, has_other_settings=True)]
    request.write_text('{"copy": 7}')  # as earlier versions ask
    assert pending_requests(tmp_path) == [CopyRequest(request, 7)]
