"""The configuration that ``pgsluice init`` writes, with comments."""

from __future__ import annotations

import json

_TEMPLATE = """\
# pgsluice: what is replicated, and where to. Relative paths start from this file's folder.

[source]
# libpq's connection string. Service files, ~/.pgpass, PG* variables and TLS options work,
# so the password can be kept elsewhere.
dsn = {dsn}
# password_command = "…"     # prints the password; called again when the server refuses it
# The replication slot: created by the first run.
slot = {slot}
# Publications on the server: created by the first run if they are missing.
publications = [{slot}]
# streaming = "parallel"     # send open transactions early: "off", "on" (14+), "parallel" (16+)
# two_phase = false          # send prepared transactions at PREPARE; cannot be changed later (15+)
# binary = false             # send values in binary form (14+)
# messages = false           # send what pg_logical_emit_message writes (14+)
# origin = "any"             # "none": not what the source itself received by replication (16+)
# catalog_poll_s = 10        # seconds between catalog refreshes
# connect_timeout_s = 30     # seconds that connecting may take
# silence_timeout_s = 60     # connect again when the server has sent nothing for so long (0: never)

[spool]
# Changes that were received and not yet applied: a folder on a durable local disk.
path = {spool}
# segment_bytes = "16 MiB"   # a segment ends at this size,
# segment_ms = 200           # or so long after the one before it; after a pause, at once
# retention = "0s"           # how long segments are kept after every subscription applied them
# max_bytes = "20 GiB"       # the spool's limit (default: 90 % of the disk). All transactions
#                            # that are open or prepared at the same time have to fit

# pgsluice's own publications choose the rows and columns of a subscription, in the syntax of
# PostgreSQL 15+ (CREATE PUBLICATION orders_eu FOR TABLE orders WHERE (region = 'EU')):
#   [publications]
#   file = "publications.sql"

[[subscription]]
name = {name}
#   publications = ["orders_eu"]   # from [publications]; default: everything that the slot sends
sink = {{ type = "delta", path = {target} }}
# enabled = true
# copy_data = true           # begin with a copy; false: changes of older rows are skipped
# copy_workers = 8           # connections that copies read with, at most
# copy_cores = 1             # tasks of copies beside the stream (default: half of Spark's)
# copy_rate = "50 MiB"       # a second, that copies read from the source (default: no limit)
# max_rows_per_batch = 1_000_000
# max_bytes_per_batch = "256 MiB"
# cut_retention_s = 600      # seconds that readers may use consistent checkpoints. To read any
#                            # version of a day, add history_retention = "24h" to the sink
# If a reader cannot read deletion vectors, add merge = "on_write" to the sink (docs/delta.md)
# apply_interval_s = 0       # seconds between two writes to a table, at least; 10 in object stores
# numeric = "string"         # numeric without precision: "string", "double", "decimal(38,10)"
# verify = {{ every = "24h", rate = "20 MiB" }}   # compare tables on a schedule, repair them
# key = {{ "public.t" = ["a", "b"] }}   # for a table without a key

[spark]
# Any Spark setting.
"spark.master" = "local[*]"

# Metrics for Prometheus, /healthz and /readyz: pip install "pgsluice[monitor]", and
#   [monitor]
#   listen = "127.0.0.1:9187"
#   max_lag_s = 300            # a subscription that is further behind is a problem
#   max_slot_bytes = "10 GiB"  # so is a slot that keeps more WAL on the server
#   webhook = "env:ALERTS_URL" # problems are sent there as JSON
"""


def render_config(*, dsn: str, slot: str, spool: str, target: str, name: str) -> str:
    """The file's text. Values are quoted, but not checked."""
    values = {"dsn": dsn, "slot": slot, "spool": spool, "target": target, "name": name}
    for key, value in values.items():  # TOML has all of JSON's escapes; only DEL has to be added
        values[key] = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return _TEMPLATE.format(**values)
