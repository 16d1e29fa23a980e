"""Values of every type that a row filter can be computed on: the extremes, and random ones.

They are texts of SQL literals. Among them are the types' special values: NaN, infinities,
negative zero, empty strings, trailing blanks, the first and the last value.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

_WILD = re.compile(r"(?i)infinity|nan|BC|^\d{6,}-|\d{26}|e\d\d|e-30")
_NEVER = re.compile(r"(?!)")
_ALPHABET = "abAB%_ .1\\eé"

EXTREMES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("filter_extremes.json").read_text("utf-8")
)
TYPES = tuple(EXTREMES)

#: How a type is written in SQL, if not by its name; columns with a length.
SQL_NAMES = {"char": '"char"', "bpchar": "bpchar", "bit": "bit(8)"}
COLUMN_TYPES = {"bpchar": "char(12)", "bit": "bit(8)", "varchar": "varchar(20)", "char": '"char"'}


#: Where values have to fit decimal(38, 9).
TAME_COLUMN_TYPES = {**COLUMN_TYPES, "numeric": "numeric(38,9)"}


def sql_type(name: str) -> str:
    """A type's name in an expression."""
    if name.startswith("_"):
        return f"{sql_type(name[1:])}[]"
    return SQL_NAMES.get(name, f'"{name}"' if name == "char" else name)


def random_text(name: str, random: Random, tame: bool = False) -> str:
    """A value: one of the extremes, or any.

    Args:
        tame: only values that the column's Arrow type can hold.
    """
    make = _MAKERS.get(name)
    if make is None or random.random() < (0.2 if tame else 0.65):
        wild = _WILD if tame else _NEVER
        return random.choice([one for one in EXTREMES[name] if not wild.search(one)])
    return make(random)


def _integer(random: Random) -> str:
    widest = 40 if random.random() < 0.7 else 10**9
    return str(random.randint(-widest, widest))


def _float(random: Random) -> str:
    return repr(round(random.gauss(0, 1000), random.randint(0, 5)))


def _digits(random: Random, least: int, most: int) -> str:
    return "".join(random.choices(string.digits, k=random.randint(least, most)))


def _numeric(random: Random) -> str:
    fraction = _digits(random, 0, 12)
    point = "." if fraction else ""
    return f"{random.choice(('', '-'))}{_digits(random, 1, 25)}{point}{fraction}"


def _text(random: Random) -> str:
    return "".join(random.choices(_ALPHABET, k=random.randint(0, 8)))


def _date(random: Random) -> str:
    year, month, day = random.randint(1, 3000), random.randint(1, 12), random.randint(1, 28)
    return f"{year:04}-{month:02}-{day:02}"


def _timestamp(random: Random) -> str:
    hour, minute, second = random.randint(0, 23), random.randint(0, 59), random.uniform(0, 59)
    return f"{_date(random)} {hour:02}:{minute:02}:{second:09.6f}"


def _interval(random: Random) -> str:
    months, days = random.randint(-30, 30), random.randint(-40, 40)
    return f"{months} mons {days} days {random.randint(0, 90):02}:00:00"


def _inet(random: Random) -> str:
    return f"10.{random.randint(0, 3)}.{random.randint(0, 255)}.1/{random.randint(0, 32)}"


def _bits(random: Random) -> str:
    return "".join(random.choices("01", k=random.randint(0, 20)))


def _some(characters: str) -> Callable[[Random], str]:
    """An array of up to four of some characters."""
    return lambda random: "{" + ",".join(random.choices(characters, k=random.randint(0, 4))) + "}"


_MAKERS: dict[str, Callable[[Random], str]] = {
    "int2": lambda random: str(random.randint(-300, 300)),
    "int4": _integer,
    "int8": _integer,
    "float4": _float,
    "float8": _float,
    "numeric": _numeric,
    "text": _text,
    "varchar": _text,
    "bpchar": _text,
    "name": _text,
    "bytea": lambda random: "\\x" + random.randbytes(random.randint(0, 4)).hex(),
    "bit": lambda random: f"{random.randrange(256):08b}",
    "varbit": _bits,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": lambda random: f"{_timestamp(random)}+00",
    "interval": _interval,
    "inet": _inet,
    "uuid": lambda random: str(UUID(bytes=random.randbytes(16))),
    "_int4": _some("012345"),
    "_text": _some("abcd"),
}
