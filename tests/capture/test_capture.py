"""Capture against a real server: what it receives, when it acknowledges, how it ends."""

from __future__ import annotations

import threading

import numpy as np

from pgsluice.capture import run_capture
from pgsluice.config import Config, SourceConfig, SpoolConfig
from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolReader


def test_once(database, tmp_path):
    db = database()
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    config = Config(
        source=SourceConfig(dsn=db.dsn, slot=db.name),
        spool=SpoolConfig(path=tmp_path / "spool"),
    )
    run_capture(config, once=True)
    db.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i", "UPDATE t SET v = 'y' WHERE id < 3")
    run_capture(config, once=True)
    reader = SpoolReader(tmp_path / "spool")
    segs = reader.segments(reader.start())
    for s in segs:
        print(s.name, s.header.counts, s.header.transactions)
        for v in reader.views(s):
            print(v.block.tags.tobytes()[:20], v.relations.keys())
    print(reader.frontier(), db.execute("select confirmed_flush_lsn, pg_current_wal_flush_lsn() from pg_replication_slots"))
