"""A configuration is validated as a whole: all mistakes at once, each with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.config import Config, load_config, mask_dsn, parse_config
from pgsluice.errors import ConfigError

_FILE = Path("/etc/pgsluice/shop.toml")
_SOURCE = '[source]\ndsn = "postgresql://app:secret@db/shop"\n'
_SPOOL = '[spool]\npath = "spool"\n'
_SINK = 'sink = { type = "delta", path = "lake/{schema}/{table}" }\n'
_LAKE = f'[[subscription]]\nname = "lake"\n{_SINK}'


def _parse(text: str) -> Config:
    return parse_config(text, _FILE)


def _mistakes(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        _parse(text)
    assert caught.value.exit_code == 2
    assert "secret" not in str(caught.value)
    mistakes: tuple[str, ...] = caught.value.mistakes
    return mistakes


def test_defaults() -> None:
    config = _parse(_SOURCE + _SPOOL + _LAKE)
    source, spool, lake = config.source, config.spool, config.subscriptions[0]
    assert (source.slot, source.publications) == ("pgsluice", ("pgsluice",))
    assert (source.proto_version, source.streaming, source.origin) == (None, None, "any")
    assert (source.two_phase, source.binary, source.messages) == (False, False, False)
    assert (source.catalog_poll_s, source.connect_timeout_s) == (10, 30)
    assert (spool.segment_bytes, spool.segment_ms) == (16 * 2**20, 200)
    assert (spool.retention, spool.max_bytes, spool.shared) == (0, None, False)
    assert (lake.mode, lake.enabled, lake.copy_data, lake.copy_workers) == (
        "current",
        True,
        True,
        8,
    )
    assert (lake.max_rows_per_batch, lake.max_bytes_per_batch) == (1_000_000, 256 * 2**20)
    assert (lake.merge_interval_s, lake.cut_interval_s, lake.cut_retention_s) == (0, 60, 600)
    assert (lake.publications, lake.copy_rate, lake.deleted_column) == (None, None, None)
    assert (lake.numeric, lake.json_as, lake.on_unrepresentable) == ("string", "string", "reject")
    assert (lake.foreign_writes, lake.change_column_prefix) == ("park", "_")
    assert (lake.key, lake.types, lake.rename, config.spark) == ({}, {}, {}, {})


def test_relative_paths_start_from_the_file() -> None:
    config = _parse(_SOURCE + _SPOOL + _LAKE)
    assert config.spool.path == Path("/etc/pgsluice/spool")
    assert config.subscriptions[0].sink.target == "/etc/pgsluice/lake/{schema}/{table}"


def test_absolute_paths_and_urls_are_kept() -> None:
    text = _SOURCE + '[spool]\npath = "/var/spool"\n' + _LAKE.replace("lake/{s", "s3://b/{s")
    config = _parse(text)
    assert config.spool.path == Path("/var/spool")
    assert config.subscriptions[0].sink.target == "s3://b/{schema}/{table}"


def test_sizes_and_durations_may_have_units() -> None:
    spool = 'path = "s"\nsegment_bytes = "1 MiB"\nretention = "1h 30m"\nmax_bytes = "2GiB"\n'
    config = _parse(_SOURCE + "[spool]\n" + spool)
    assert config.spool.segment_bytes == 2**20
    assert config.spool.retention == 5400
    assert config.spool.max_bytes == 2**31


def test_subscriptions_are_optional() -> None:
    assert _parse(_SOURCE + _SPOOL).subscriptions == ()


def test_keys_map_a_table_to_its_columns() -> None:
    config = _parse(_SOURCE + _SPOOL + _LAKE + 'key = { "public.t" = ["a", "b"] }\n')
    assert config.subscriptions[0].key == {"public.t": ("a", "b")}


def test_names_of_spark_settings_may_be_unquoted() -> None:
    settings = '[spark]\n"spark.ui.enabled" = false\nspark.sql.shuffle.partitions = 2\n'
    config = _parse(_SOURCE + _SPOOL + settings)
    assert config.spark == {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["the section [source] is missing", "the section [spool] is missing"]),
        (_SOURCE + _SPOOL + "[spol]\n", ["unknown section [spol]; did you mean [spool]?"]),
        (
            _SOURCE + _SPOOL + '[[subscriptions]]\nname = "x"\n',
            ["unknown section [subscriptions]; did you mean [[subscription]]?"],
        ),
        ("x = 1\n" + _SOURCE + _SPOOL, ['unknown key "x"']),
        (
            _SOURCE + 'slott = "x"\n' + _SPOOL,
            ['[source]: unknown key "slott"; did you mean "slot"?'],
        ),
        (
            _SOURCE + _SPOOL + _LAKE + 'mod = "current"\n',
            ['[subscription] "lake": unknown key "mod"; did you mean "mode"?'],
        ),
        (
            _SOURCE + _SPOOL + _LAKE.replace('type = "delta"', 'type = "delta", pth = "x"'),
            ['[subscription] "lake", sink: unknown key "pth"; did you mean "path"?'],
        ),
        (
            _SOURCE + _SPOOL + _LAKE.replace('"delta"', '"detla"'),
            ['[subscription] "lake", sink: unknown type "detla"; did you mean "delta"?'],
        ),
        (
            _SOURCE + _SPOOL + '[[subscription]]\nname = "a"\nsink = { path = "x" }\n',
            ['[subscription] "a": "sink" needs a "type", as in { type = "delta", path = "…" }'],
        ),
        (
            _SOURCE + _SPOOL + "[[subscription]]\n" + _SINK,
            ['[subscription] number 1: "name" is missing'],
        ),
        ("[source]\n" + _SPOOL, ['[source]: "dsn" is missing']),
        (
            "[source]\ndsn = 5432\n" + _SPOOL,
            ['[source]: "dsn" has to be text in quotes'],
        ),
        (
            _SOURCE + 'publications = "a"\n' + _SPOOL,
            ['[source]: "publications" has to be a list, as in ["a", "b"]'],
        ),
        (_SOURCE + "publications = []\n" + _SPOOL, ['[source]: "publications" must not be empty']),
        (
            _SOURCE + 'publications = ["a", "a"]\n' + _SPOOL,
            ['[source]: "publications" has a name twice'],
        ),
        (
            _SOURCE + 'slot = "My-Slot"\n' + _SPOOL,
            ['[source]: "slot" has to be a slot\'s name: 1 to 63 characters of a-z, 0-9 and _'],
        ),
        (
            _SOURCE + "two_phase = 1\n" + _SPOOL,
            ['[source]: "two_phase" has to be true or false'],
        ),
        (
            _SOURCE + 'catalog_poll_s = "often"\n' + _SPOOL,
            [
                (
                    '[source]: "catalog_poll_s" has to be seconds, or text such as "10m" '
                    "(ms, s, m, h, d)"
                )
            ],
        ),
        (
            _SOURCE + _SPOOL + 'segment_bytes = "16 MB"\n',
            [
                (
                    '[spool]: "segment_bytes" has to be a number of bytes, or text such as '
                    '"16 MiB" (KiB, MiB, GiB)'
                )
            ],
        ),
        (
            _SOURCE + _SPOOL + "segment_bytes = 10\n",
            ['[spool]: "segment_bytes" has to be at least 1,024'],
        ),
        (
            _SOURCE + "connect_timeout_s = 1e999\n" + _SPOOL,
            ['[source]: "connect_timeout_s" has to be at most 1,000,000,000'],
        ),
        (
            _SOURCE + '[spool]\npath = "s3://bucket/x"\n',
            [
                (
                    '[spool]: needs "state", a folder on a disk of this machine, for a "path" in '
                    "an object store: locks, command files and status are there"
                )
            ],
        ),
        (
            _SOURCE + '[spool]\npath = "s3://bucket/x"\nstate = "s"\nshared = true\n',
            ['[spool]: needs no "shared": all machines see an object store'],
        ),
        (
            _SOURCE + '[spool]\npath = "s3://bucket/x"\nstate = "gs://bucket/y"\n',
            ['[spool]: "state" has to be a path on a disk'],
        ),
        (
            _SOURCE + '[spool]\npath = "s3://key@bucket/x"\nstate = "s"\n',
            [
                (
                    '[spool]: "path" may not have a user or a password; storage_options has a '
                    "place for keys"
                )
            ],
        ),
        (
            _SOURCE + _SPOOL + 'state = "s"\n',
            ['[spool]: has "state", which only a "path" in an object store may have'],
        ),
        (
            _SOURCE + _SPOOL + 'storage_options = { aws_region = "x" }\n',
            ['[spool]: has "storage_options", which only a "path" in an object store may have'],
        ),
        (
            _SOURCE + _SPOOL + _LAKE + 'mode = "curent"\n',
            [
                (
                    '[subscription] "lake": "mode" is "curent"; '
                    'it can be "current", "changelog" or "history"'
                )
            ],
        ),
        (
            _SOURCE + _SPOOL + _LAKE + 'numeric = "decimal(10,2)"\n',
            [
                (
                    '[subscription] "lake": "numeric" can be "string", "double" or "decimal(38,s)" '
                    "with s from 0 to 38"
                )
            ],
        ),
        (
            _SOURCE + _SPOOL + _LAKE + 'key = { t = ["a"] }\n',
            ['[subscription] "lake": "key" needs names such as "public.t", not "t"'],
        ),
        (
            _SOURCE + _SPOOL + _LAKE.replace('"lake"', '"../lake"'),
            [
                (
                    '[subscription] "../lake": "name" becomes a folder\'s name: at most 100 '
                    "letters, digits, _, - and ., not - or . first"
                )
            ],
        ),
        (
            _SOURCE + _SPOOL + _LAKE.replace("{table}", "t"),
            [
                (
                    '[subscription] "lake", sink: "path" has to contain {table}, '
                    "else all tables would share one target"
                )
            ],
        ),
        (
            _SOURCE + _SPOOL + _LAKE.replace("{table}", "{tabel}"),
            ['[subscription] "lake", sink: "path" may contain {schema} and {table}, not {tabel}'],
        ),
        (
            _SOURCE + _SPOOL + "[subscription]\n",
            ["write each subscription as [[subscription]], in double brackets"],
        ),
        (
            _SOURCE + _SPOOL + _LAKE + _LAKE.replace('"lake"', '"LAKE"'),
            ['two subscriptions are named "lake"'],
        ),
        (
            _SOURCE + _SPOOL + _LAKE + _LAKE.replace('"lake"', '"pond"'),
            [
                (
                    '[subscription] "pond" writes to the same target as "lake"; each needs its '
                    "own target"
                )
            ],
        ),
        (
            _SOURCE + _SPOOL + '[spark]\n"spark.master" = "spark://head:7077"\n',
            [
                (
                    '[spool]: executors of "spark.master" = "spark://head:7077" cannot see a '
                    "folder of this machine; set shared = true if it is mounted at the same path "
                    "on all of them, or have the spool in an object store"
                )
            ],
        ),
        (
            _SOURCE + _SPOOL + "[spark]\nx = [1]\n",
            ['[spark]: "x" has to be text, a number, true or false'],
        ),
    ],
)
def test_each_mistake_is_a_sentence(text: str, expected: list[str]) -> None:
    assert list(_mistakes(text)) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (_SOURCE, 'add [spool] with path = "spool"; `pgsluice init` writes'),
        ("", 'add [source] with dsn = "postgresql://…" and [spool] with path = "spool"; `'),
    ],
)
def test_a_missing_section_is_shown(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _parse(text)
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(named)


def test_all_mistakes_are_reported_together() -> None:
    text = "[source]\nslot = 3\n" + _SPOOL + "segment_ms = 0\n" + _LAKE + "enabled = 1\nx = 2\n"
    assert len(_mistakes(text)) == 5
    with pytest.raises(ConfigError, match=r"shop\.toml has 5 mistakes:\n  \[source\]"):
        _parse(text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('adopt = true\nmode = "changelog"', '"adopt" and "deleted_column" need mode = "current"'),
        (
            'publications = ["p"]',
            "names publications of the section [publications], which",
        ),
        ('rename = { "a.b" = "c.d" }', "it has to be the new name alone"),
        ('rename = { "a.b" = "" }', "it has to be the new name alone"),
        ('rename = { "a..b" = "c" }', 'needs names such as "public.orders"'),
        ('rename = { "a.t.b" = "x", "a.t.c" = "X" }', 'gives "a.t.b" and "a.t.c" the same name'),
        ('rename = { "a" = "x", "b" = "x" }', 'gives "a" and "b" the same name "x"'),
        ('change_column_prefix = "$"', '"change_column_prefix" needs mode = "changelog"'),
        ('deleted_column = "gone"\nmode = "changelog"', 'need mode = "current"'),
        ('deleted_column = "gone"\nadopt = true', '"adopt" has no effect with "deleted_column"'),
    ],
)
def test_unsupported_settings_are_refused(line: str, expected: str) -> None:
    (mistake,) = _mistakes(f"{_SOURCE}{_SPOOL}{_LAKE}{line}\n")
    assert mistake.startswith('[subscription] "lake": ')
    assert f'"{line.split()[0]}"' in mistake
    assert expected in mistake


@pytest.mark.parametrize(
    ("sink", "named"),
    [
        ('type = "iceberg", table = "x"', '"iceberg"'),
        ('type = "postgres", dsn = "service=reporting"', '"postgres"'),
    ],
)
def test_unsupported_sinks_are_refused(sink: str, named: str) -> None:
    (mistake,) = _mistakes(f'{_SOURCE}{_SPOOL}[[subscription]]\nname = "a"\nsink = {{ {sink} }}\n')
    assert named in mistake
    assert "supported yet" in mistake


def test_no_password_is_shown() -> None:
    config = _parse(_SOURCE + _SPOOL)
    assert "secret" not in repr(config)
    assert mask_dsn(config.source.dsn) == "postgresql://app:***@db/shop"
    (mistake,) = _mistakes(_SOURCE.replace("postgresql://", "postgresql//") + _SPOOL)
    assert mistake.startswith('[source]: "dsn" is not a libpq connection string')


@pytest.mark.parametrize("secret", ["secret/x", "x@secret", "1234/secret"])
def test_a_password_that_is_read_as_host_or_port_is_not_shown(secret: str) -> None:
    """libpq's own message about it would show it."""
    (mistake,) = _mistakes(_SOURCE.replace("secret", secret) + _SPOOL)
    assert mistake.startswith('[source]: "dsn" has a host, a port or a database that cannot be one')
    assert "secret" not in mistake


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app@a:5432,b:5433,c/shop",
        "postgresql://app:with%40and%2F@a/shop",
        "host=@abstract,/var/run port=5432,5433",
        "service=shop",
    ],
)
def test_hosts_and_ports_as_libpq_has_them(dsn: str) -> None:
    assert _parse(f'[source]\ndsn = "{dsn}"\n{_SPOOL}').source.dsn == dsn


def test_a_configuration_survives_json() -> None:
    config = _parse(_SOURCE + _SPOOL + _LAKE + 'key = { "public.t" = ["a"] }\n')
    assert Config.model_validate_json(config.model_dump_json(by_alias=True)) == config


def test_a_shared_spool_allows_any_master() -> None:
    text = _SOURCE + _SPOOL + 'shared = true\n[spark]\n"spark.master" = "yarn"\n'
    assert _parse(text).spark["spark.master"] == "yarn"


def test_a_spool_in_a_store_has_a_folder_on_each_machine() -> None:
    text = (
        _SOURCE
        + '[spool]\npath = "s3://bucket/spool/"\nstate = "state"\n'
        + 'storage_options = { aws_secret_access_key = "hidden", allow_http = true }\n'
        + _LAKE
        + '[spark]\n"spark.master" = "yarn"\n'
    )
    config = _parse(text)
    for spool in (
        config.spool,
        Config.model_validate_json(config.model_dump_json(by_alias=True)).spool,
    ):
        assert str(spool.place) == "s3://bucket/spool"
        assert spool.folder == Path("/etc/pgsluice/state")
        assert spool.place.options["allow_http"] == "true"
        assert (spool.segment_bytes, spool.segment_ms) == (32 * 2**20, 1000)
    assert "hidden" not in f"{config} {config.spool.place}"
    local = _parse(_SOURCE + _SPOOL).spool
    assert Config.model_validate_json(_parse(_SOURCE + _SPOOL).model_dump_json()).spool == local


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the configuration .*no\.toml does not exist") as caught:
        load_config(tmp_path / "no.toml")
    assert caught.value.hint == f"create it with `pgsluice init {tmp_path}/no.toml`"


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[source\n")
    with pytest.raises(ConfigError, match=r"c\.toml is not TOML: .*line 1"):
        load_config(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[" * 5000 + "]" * 5000, "c.toml has values that are nested too deeply"),
        ("{a = " * 5000 + "1" + "}" * 5000, "c.toml has values that are nested too deeply"),
        ("1" * 5000, "c.toml has a number with thousands of digits"),
    ],
    ids=["arrays", "tables", "digits"],
)
def test_values_that_no_reader_of_toml_takes(tmp_path: Path, value: str, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"{_SOURCE}silence_timeout_s = {value}\n{_SPOOL}")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == message


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_config(path)


def test_a_subscription_is_found_by_its_name() -> None:
    config = _parse(_SOURCE + _SPOOL + _LAKE)
    assert config.subscription("lake").name == "lake"
    with pytest.raises(ConfigError, match='no subscription "leak"') as caught:
        config.subscription("leak")
    assert caught.value.hint == 'its subscriptions are: "lake"'


def _monitor(lines: str) -> str:
    return f"{_SOURCE}{_SPOOL}[monitor]\n{lines}"


def test_without_a_section_nothing_listens() -> None:
    monitor = _parse(_SOURCE + _SPOOL).monitor
    assert (monitor.address, monitor.tables) == (None, False)
    assert (monitor.max_lag_s, monitor.max_slot_bytes) == (300, 10 * 2**30)


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9187", ("127.0.0.1", 9187)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:9187", ("::1", 9187)),
    ],
)
def test_this_machine_may_always_read_metrics(listen: str, address: tuple[str, int]) -> None:
    assert _parse(_monitor(f'listen = "{listen}"')).monitor.address == address


@pytest.mark.parametrize("listen", ["0.0.0.0:9187", "10.1.2.3:9187", "[::]:9187", "db.example:1"])
def test_an_address_that_others_reach_needs_words_about_its_readers(listen: str) -> None:
    (mistake,) = _mistakes(_monitor(f'listen = "{listen}"'))
    assert 'needs "readers" for a "listen" that other machines can reach' in mistake
    with pytest.raises(ConfigError, match='needs "readers"'):
        _parse(_monitor(f'listen = "{listen}"\nreaders = " "'))
    open_ = _parse(_monitor(f'listen = "{listen}"\nreaders = "our network, by firewall"'))
    assert open_.monitor.address is not None
    assert not open_.monitor.is_local


@pytest.mark.parametrize("listen", ["9187", ":9187", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:x"])
def test_an_address_without_a_port_is_refused(listen: str) -> None:
    (mistake,) = _mistakes(_monitor(f'listen = "{listen}"'))
    assert '"listen" ' in mistake


def test_a_schedule_of_verifications() -> None:
    lake = _parse(_SOURCE + _SPOOL + _LAKE + 'verify = { every = "24h", rate = "20MiB" }\n')
    schedule = lake.subscriptions[0].verify
    assert schedule is not None
    assert (schedule.every, schedule.rate) == (86400, 20 * 2**20)
    wrong = _mistakes(_SOURCE + _SPOOL + _LAKE + 'verify = { evry = "24h", rate = "1KiB" }\n')
    place = '[subscription] "lake" verify: '
    assert {each.removeprefix(place) for each in wrong} == {
        '"every" is missing',
        '"rate" has to be at least 1,048,576',
        'unknown key "evry"; did you mean "every"?',
    }
    log = _SOURCE + _SPOOL + _LAKE + 'mode = "changelog"\nverify = { every = "24h" }\n'
    assert "pgsluice verify" in _mistakes(log)[0]
