"""Types and their values, extremes first, for the tests of binary mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One type and some of its values.

    Attributes:
        type: its name in SQL.
        values: in text form.
        since: the first server version that has the type.
        needs: the extension that has the type.
        has_array: can ARRAY[] build an array of it?
        has_send: does it have a send function? The server cannot send an array or composite
            of a type without one in binary mode.
    """

    type: str
    values: Sequence[str]
    since: int = 14
    needs: str = ""
    has_array: bool = True
    has_send: bool = True


def words(text: str) -> list[str]:
    """Splits a string into values that have no blanks."""
    return text.split()


FLOATS = words("""
    0 -0 1 -1 0.1 NaN Infinity -Infinity 1e-4 1e-5 123456 1234567 1e14 1e15 1e16 0.00001234
    1.5 -2.25 1e23 9007199254740993 9e15 3.4028235e38 1e-37 8388608 16777216 33554432 8.5e9
""")
RANGE_OF = {
    "int4range": ["empty", "(,)", "[1,5)", "[-3,)", "(,7)"],
    "int8range": ["empty", "[-9223372036854775808,9223372036854775806)"],
    "numrange": ["empty", "(1.50,2.500]", "[-1,NaN)", "(,1e40]", "[0.00001,0.0001)"],
    "daterange": ["empty", "[2024-01-01,infinity)", '["0044-03-15 BC",2024-01-01)', "(,-infinity)"],
    "tsrange": [
        "empty",
        '["2024-01-01 00:00:00.5","10000-01-01 00:00:00")',
        "[-infinity,infinity]",
    ],
    "tstzrange": ["empty", '("2024-07-01 12:00+02",)', '["0001-01-01 00:00+00 BC",infinity]'],
}
CASES = [
    Case("bool", ["t", "f"]),
    Case("int2", ["-32768", "32767", "0"]),
    Case("int4", ["-2147483648", "2147483647", "0"]),
    Case("int8", ["-9223372036854775808", "9223372036854775807", "0"]),
    Case("oid", ["0", "4294967295"]),
    Case("float4", [f for f in FLOATS if f != "1e-37"] + ["1e-45", "0.3", "1.17549435e-38"]),
    Case("float8", [*FLOATS, "5e-324", "1.7976931348623157e308", "2.2250738585072014e-308"]),
    Case(
        "numeric",
        words(
            "0 0.00 -0.5 1 10000 99999999 1e40 -1e-30 1.500 NaN Infinity -Infinity"
            " 0.0001 0.00001 10000.0001 100000000 12345678.87654321 1e300 0.000000001000"
        ),
    ),
    Case("numeric(10,2)", ["0.01", "-99999999.99", "100", "0", "NaN"]),
    Case("numeric(38,19)", ["9" * 19 + "." + "9" * 19, "-0." + "0" * 18 + "1"]),
    Case("numeric(3,-2)", ["99900", "-100", "49"], since=15),
    Case("text", ["", " ", "ünï 🐘", "\t\n\\'\"", "NULL", "null", "a,b", "(a)", "{x}", "[y]"]),
    Case("varchar(5)", ["", "abcde"]),
    Case("bpchar", ["ab  ", ""]),
    Case("char(5)", ["ab", ""]),
    Case("name", ["a_name", "with blank"]),
    Case('"char"', ["x", "", '"', "\\\\"]),
    Case('"char"', [r"\377", r"\200"], since=16),
    Case("bytea", ["\\x", "\\x00ff5c27", "\\xdeadbeef"]),
    Case("date", ["4713-01-01 BC", "infinity", "-infinity", "5874897-12-31", "2024-02-29"]),
    Case("timestamp", ["4713-11-24 00:00 BC", "infinity", "-infinity", "294276-12-31 23:59:59.9"]),
    Case("timestamptz", ["4713-11-24 00:00+00 BC", "infinity", "-infinity", "2024-01-01 0:00+14"]),
    Case("time", ["00:00", "24:00:00", "12:34:56.789", "23:59:59.999999", "00:00:00.00001"]),
    Case("timetz", ["12:34:56.789+05:30", "24:00:00-15:59", "00:00+15:59:59", "01:00-00:30:01"]),
    Case(
        "interval",
        [
            "0", "1 year", "-1 year", "1 mon", "-13 mons", "1 day", "-2 days", "00:00:01.5",
            "-00:00:00.000001", "-1 mons +3 days -04:05:06.7", "1 mons -3 days 04:05", "100:00:00",
            "178000000 years", "-178000000 years", "1 year 2 mons -3 days", "-1 day 10:00",
             "-1 years -1 mons +1 day -1 sec", "11 mons 1 us",
        ],
    ),
    Case("interval", ["2562047788:00:54.775807", "-2562047788:00:54.775807"], since=15),
    Case("interval", ["infinity", "-infinity"], since=17),
    Case("uuid", ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    Case("json", ['{"a":  [1, null]}', '"\\u00fc"', "null"]),
    Case("jsonb", ['{"a":  [1, null]}', '"ü"', "1.50"]),
    Case("jsonpath", ["$.a[*] ? (@.b > 1)", "strict $", '$."x y"']),
    Case("xml", ["<a/>", '<?xml version="1.0" encoding="UTF-8"?><b>ü</b>', "plain"]),
    Case("refcursor", ["c", ""]),
    Case("money", ["0", "-0.01", "1234567.89", "-92233720368547758.08", "92233720368547758.07"]),
    Case(
        "inet",
        words(
            "10.0.0.1 10.0.0.0/8 0.0.0.0/0 255.255.255.255 ::1 :: ::/0 ::1/64 fe80::1"
            " 1::2:0:0:3 ::ffff:1.2.3.4 ::1.2.3.4 ::ffff:0:1.2.3.4 2001:db8::/32"
            " 1:2:3:4:5:6:7:8 ::7:8 1:: 0:0:1::1 1:0:0:2::3 0:0:0:0:0:ffff:: ::2"
            " 0:1:2:3:4:5:6:7 1:0:3:4:5:6:7:8"
        ),
    ),
    Case("cidr", ["10.0.0.0/8", "10.1.2.3", "::/0", "2001:db8::/32", "::1", "::ffff:1.2.3.0/120"]),
    Case("macaddr", ["08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"]),
    Case("macaddr8", ["08:00:2b:01:02:03:04:05"]),
    Case("bit(5)", ["10101", "00000"]),
    Case("bit(16)", ["1010101011110000"]),
    Case("varbit", ["", "1", "11111111", "000000001"]),
    Case(
        "tsvector",
        ["", "a b", "a:1A,2B fat:3C,4D cat:5", r"'it''s':1 'b\\c' 'two words':2A", "ü:16383"],
    ),
    Case(
        "tsquery",
        [
            "", "a", "a & b", "a | b & !c", "(a | b) & c", "a <-> b", "a <2> b", "a <-> (b <-> c)",
            "(a <-> b) <-> c", "!(a & b)", "!!a", "a:*AB", "'it''s' & b:D", "!a <-> b", "a <0> b",
            "(a | b) <-> (c & d)", "a & (b & c)", r"'b\\c':*",
        ],
    ),
    Case("point", [f"({text},{text})" for text in FLOATS] + ["(5e-324,1.7976931348623157e308)"]),
    Case("lseg", ["[(1,2),(3,4.5)]"]),
    Case("box", ["(1,1),(0,0)", "(Infinity,1e100),(-Infinity,-1e-100)"]),
    Case("path", ["((1,2),(3,4))", "[(1,2)]"]),
    Case("polygon", ["((1,2),(3,4),(5,6.5))", "((0,0))"]),
    Case("line", ["{1,2,3}", "{-1,0,0.1}"]),
    Case("circle", ["<(1,2),3>", "<(0.1,1e20),0>"]),
    *(Case(name, values) for name, values in RANGE_OF.items()),
    *(
        Case(
            name.replace("range", "multirange"),
            ["{}", *(f"{{{value}}}" for value in values), f"{{{values[1]},{values[-1]}}}"],
        )
        for name, values in RANGE_OF.items()
    ),
    Case("pg_lsn", ["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848"]),
    Case("xid", ["0", "4294967295"]),
    Case("cid", ["0", "4294967295"]),
    Case("tid", ["(0,0)", "(4294967295,65535)"]),
    Case("xid8", ["0", "18446744073709551615"]),
    Case("txid_snapshot", ["10:10:", "10:20:10,14,15"]),
    Case("pg_snapshot", ["10:10:", "10:20:10,14,15"]),
    Case("int2vector", ["", "1 -2 3"], has_array=False),
    Case("oidvector", ["", "1 4294967295"], has_array=False),
    Case("aclitem", ["=r/{user}"], has_array=False, has_send=False),
    # What users make.
    Case("public.mood", ["sad", "very happy"]),
    Case("public.price", ["1.5", "-0.01"]),
    Case("public.words", ["{a,NULL,b c}", "{}", "[0:1]={x,y}"]),
    Case("public.pair", ['(1,"a b")', "(,)", '(,"")', r'(-5,"q""q\\,(")']),
    Case("public.nested", [r'("(1,""x y"")","{""(2,)"",NULL}",sad,"[1,2.5)")', "(,,,)"]),
    Case(
        "public.textrange",
        ["[a,b)", r'["a b","c""d\\"]', "(,)", "empty", '["",z)', r'["(,","[\\)"]', '["\t",]'],
    ),
    Case("public.floatrange", ["[0.1,1e23)", "empty", "[-Infinity,NaN]"]),
    Case("public.floatmultirange", ["{[0.1,0.2),[1e15,)}", "{}"]),
    Case("public.hstore", ['a=>1, "b c"=>NULL, "q\\"\\\\"=>""', ""], needs="hstore"),
    Case("public.citext", ["ABC", ""], needs="citext"),
    Case("public.ltree", ["a.b.c", ""], needs="ltree"),
    Case("public.lquery", ["a.*{1,2}.!b"], needs="ltree"),
    Case("public.ltxtquery", ["a & !b"], needs="ltree"),
    Case("public.vector", ["[1,2.5,-0.1]", "[1e-10,3e38]", "[16777217]"], needs="vector"),
    Case("public.halfvec", ["[1,2.5,-0.1]", "[65504,6e-8]"], needs="vector"),
    Case("public.sparsevec", ["{1:1.5,3:-0.1}/5", "{}/3"], needs="vector"),
]  # fmt: skip
USER_TYPES = """
    CREATE TYPE public.mood AS ENUM ('sad', 'very happy');
    CREATE DOMAIN public.price AS numeric(10,2);
    CREATE DOMAIN public.words AS text[];
    CREATE TYPE public.pair AS (a int, gone int, b text);
    ALTER TYPE public.pair DROP ATTRIBUTE gone;
    CREATE TYPE public.nested AS (p public.pair, ps public.pair[], m public.mood, r numrange);
    CREATE TYPE public.textrange AS RANGE (subtype = text, collation = "C");
    CREATE TYPE public.floatrange AS RANGE (subtype = float8);
"""
NAMES_OF_OIDS = {
    "regclass": "pg_class",
    "regtype": "integer",
    "regproc": "now",
    "regprocedure": "sum(integer)",
    "regoper": "||/",
    "regoperator": "+(integer,integer)",
    "regconfig": "simple",
    "regdictionary": "simple",
    "regnamespace": "pg_catalog",
    "regrole": "{user}",
    "regcollation": '"C"',
}
