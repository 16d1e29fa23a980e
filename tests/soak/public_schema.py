"""The schema of a shop that others wrote, django-oscar of PyPI, in a database; with drawn rows.

The program has dependencies of its own, so it gets an environment of its own in ``.cache``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from tests.support.databases import Database

_ENVIRONMENT = Path(__file__).parents[2] / ".cache" / "public_schema"
_PACKAGES = ("django-oscar==4.2.1", "psycopg[binary]")
_INSTALL_S = 300.0
_SETTINGS = """
import os
from oscar.defaults import *
SECRET_KEY = "only of a test"
USE_TZ = True
SITE_ID = 1
STATIC_URL = "/"
ROOT_URLCONF = "settings"
urlpatterns = []
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
DATABASES = {
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}
}
INSTALLED_APPS = [
    *(f"django.contrib.{name}" for name in
      ("admin", "auth", "contenttypes", "sessions", "messages", "sites", "flatpages")),
    "oscar.config.Shop",
    *(f"oscar.apps.{name}" for name in (
        "analytics.apps.AnalyticsConfig", "checkout.apps.CheckoutConfig",
        "address.apps.AddressConfig", "shipping.apps.ShippingConfig",
        "catalogue.apps.CatalogueConfig", "catalogue.reviews.apps.CatalogueReviewsConfig",
        "communication.apps.CommunicationConfig", "partner.apps.PartnerConfig",
        "basket.apps.BasketConfig", "payment.apps.PaymentConfig", "offer.apps.OfferConfig",
        "order.apps.OrderConfig", "customer.apps.CustomerConfig", "search.apps.SearchConfig",
        "voucher.apps.VoucherConfig", "wishlists.apps.WishlistsConfig",
        "dashboard.apps.DashboardConfig",
    )),
    *(f"oscar.apps.dashboard.{name}.apps.{name.capitalize()}DashboardConfig" for name in (
        "reports", "users", "orders", "catalogue", "offers", "partners", "pages", "ranges",
        "reviews", "vouchers", "communications", "shipping",
    )),
    "widget_tweaks", "haystack", "treebeard", "django_tables2",
]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
              "django.contrib.auth.middleware.AuthenticationMiddleware",
              "django.contrib.messages.middleware.MessageMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
              "OPTIONS": {"context_processors": [
                  "django.template.context_processors.request",
                  "django.contrib.auth.context_processors.auth",
                  "django.contrib.messages.context_processors.messages"]}}]
"""
# Of each type: a value for the number i.
_VALUES = {
    "int2": "{i} % 30000",
    "int4": "{i}",
    "int8": "{i}",
    "bool": "{i} % 2 = 0",
    "float8": "{i} / 3.0",
    "numeric": "{i} % 10 / 7.0",
    "varchar": "left(md5({i}::text), {most})",
    "text": "repeat(md5({i}::text), 1 + {i} % 90)",
    "date": "date '2024-01-01' + {i}",
    "timestamptz": "timestamptz '2024-01-01 12:00+00' + {i} * interval '61 minutes'",
    "interval": "{i} * interval '1 minute'",
    "uuid": "md5({i}::text)::uuid",
    "jsonb": "jsonb_build_object('number', {i})",
    "inet": "inet '10.0.0.0' + {i}",
}
_COLUMNS = """
SELECT attname, typname, atttypmod - 4
FROM pg_attribute a JOIN pg_type t ON t.oid = atttypid
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def migrate(database: Database, folder: Path) -> list[str]:
    """Make all tables, by the program's own migrations; returns their names.

    Args:
        folder: for the program's settings.
    """
    python = _environment()
    (folder / "settings.py").write_text(_SETTINGS)
    made = conninfo_to_dict(database.dsn)
    environment = {
        **os.environ,
        "PGHOST": str(made["host"]),
        "PGPORT": str(made["port"]),
        "PGUSER": str(made["user"]),
        "PGDATABASE": str(made["dbname"]),
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": str(folder),
    }
    done = subprocess.run(
        [str(python), "-m", "django", "migrate", "--verbosity", "0"],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [
        str(name)
        for (name,) in database.execute(
            "SELECT relname FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1"
        )
    ]


def fill(database: Database, tables: list[str], first: int, count: int) -> None:
    """Insert rows, as far as constraints allow it; nobody checks references."""
    with _without_references(database) as connection:
        for table in tables:
            columns = _columns(connection, table)
            query = sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM generate_series({}, {}) i"
                " ON CONFLICT DO NOTHING"
            ).format(
                sql.Identifier(table),
                sql.SQL(", ").join(sql.Identifier(name) for name in columns),
                sql.SQL(", ").join(_value(kind, "i") for kind in columns.values()),
                sql.Literal(first),
                sql.Literal(first + count - 1),
            )
            connection.execute(query)


def change(database: Database, tables: list[str], dice: Random) -> int:
    """Update and delete rows of each table, where constraints allow it; returns how many."""
    changed = 0
    some = "ctid IN (SELECT ctid FROM {table} ORDER BY random() LIMIT {count})"
    with _without_references(database) as connection:
        for table in tables:
            name = sql.Identifier(table)
            columns = _columns(connection, table)
            for column in dice.sample([*columns], min(3, len(columns))):
                query = sql.SQL("UPDATE {table} SET {column} = {value} WHERE " + some).format(
                    table=name,
                    column=sql.Identifier(column),
                    value=_value(columns[column], str(dice.randrange(10**6))),
                    count=sql.Literal(3),
                )
                with suppress(psycopg.errors.IntegrityError):
                    changed += connection.execute(query).rowcount
            query = sql.SQL("DELETE FROM {table} WHERE " + some)
            changed += connection.execute(query.format(table=name, count=sql.Literal(2))).rowcount
    return changed


@contextmanager
def _without_references(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with database.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        yield connection


def _columns(connection: psycopg.Connection[Any], table: str) -> dict[str, tuple[str, int]]:
    rows = connection.execute(_COLUMNS, [f'public."{table}"']).fetchall()
    return {name: (kind, most) for name, kind, most in rows}


def _value(column: tuple[str, int], number: str) -> sql.SQL:
    kind, most = column
    return sql.SQL(_VALUES[kind].format(i=number, most=most))


def _environment() -> Path:
    """The interpreter that has the program; the test is skipped where it cannot be installed."""
    python = _ENVIRONMENT / "bin" / "python"
    done = _ENVIRONMENT / ".installed"
    uv = Path(sys.executable).with_name("uv")
    if done.exists():
        return python
    try:
        for arguments in (
            ["venv", "-q", "--clear", _ENVIRONMENT],
            ["pip", "install", "-q", "--python", python, *_PACKAGES],
        ):
            subprocess.run(
                [uv, *arguments], check=True, capture_output=True, text=True, timeout=_INSTALL_S
            )
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"django-oscar cannot be installed: {error}")
    done.touch()
    return python
