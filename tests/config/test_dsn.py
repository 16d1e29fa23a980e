"""Secrets are masked in both forms of libpq's connection strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from pgsluice.config import mask_dsn


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://db/shop", "postgresql://db/shop"),
        ("postgresql://app@db:5432/shop", "postgresql://app@db:5432/shop"),
        ("postgresql://app:pw@db/shop", "postgresql://app:***@db/shop"),
        ("postgres://app:p@w@db/shop", "postgres://app:***@db/shop"),
        ("postgresql://app:p/w?@db/shop", "postgresql://app:***@db/shop"),
        ("postgresql://db/x?password=pw&ssl=1", "postgresql://db/x?password=***&ssl=1"),
        ("postgresql://db/x?a=b&sslpassword=pw", "postgresql://db/x?a=b&sslpassword=***"),
        ("host=db password=pw user=app", "host=db password=*** user=app"),
        (r"password = 'a \' b' user=app", "password = *** user=app"),
        (r"password=a\ b user=app", "password=*** user=app"),
        ("password='never closed", "password=***"),
        ("service=shop", "service=shop"),
        ("passfile=/home/a/.pgpass", "passfile=/home/a/.pgpass"),
    ],
)  # fmt: skip
def test_secrets_are_masked(dsn: str, shown: str) -> None:
    assert mask_dsn(dsn) == shown


@given(st.text(st.characters(min_codepoint=33, exclude_categories=["Cs"]), min_size=4))
def test_any_password_is_masked_in_the_keyword_form(password: str) -> None:
    secret = f"S3CRET{password}S3CRET"
    shown = mask_dsn(make_conninfo(host="db", password=secret, user="app"))
    assert "S3CRET" not in shown
    assert shown.startswith("host=db")
    assert shown.endswith("user=app")
