"""Random row filters as text, on the table of ``filter_table.py``.

They reach what the generator of typed expressions leaves to the binder: type modifiers, constants
of many digits, letters of several alphabets, zones, ranges and intervals in the forms that users
write.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

_INTEGERS = ("tenant_id", "qty", "weight", "score", "parent_id", "id")
_TEXTS = ("org", "name", "state", "kind", "email", "region", "notes")
_NUMBERS = ("amount", "price", "power_of")
_WORDS = (
    "acme", "ACME", "istanbul", "ISTANBUL", "İstanbul", "ıspanak", "école", "ÉCOLE", "straße", "a%",
    "%I%", "%i", "É%", "jörg%", "%müller", "k", "K", "",
)  # fmt: skip
_PATTERNS = (
    r"\d", r"^\w+$", r"\s", r"\W", "[[:alpha:]]", "[[:upper:]][[:lower:]]", "[^[:alnum:]]", "i",
    "^[a-k]", "[[:punct:]]", "(a|i)+", "^.{3}$",
)  # fmt: skip
_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "asia/kolkata", "Australia/Lord_Howe")
_UNITS = ("years", "mons", "weeks", "days", "hours", "min", "secs", "ms", "us")
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")


class TextMaker:
    """Makes filters; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._makers: tuple[Callable[[], str], ...] = (
            self._bits, self._length, self._scale, self._number, self._json_number, self._letters,
            self._pattern, self._bytes, self._hash, self._zone, self._interval, self._range,
            self._oid, self._moment,
        )  # fmt: skip

    def filter(self) -> str:
        """One filter; a third of them join two tests."""
        test = self.random.choice(self._makers)()
        if self.random.random() < 0.3:
            return f"({test}) {self._of('AND', 'OR')} ({self.random.choice(self._makers)()})"
        return f"NOT ({test})" if self.random.random() < 0.1 else test

    def _of(self, *choices: str) -> str:
        return self.random.choice(choices)

    def _compared(self) -> str:
        return self._of(*_COMPARISONS)

    def _digits(self, most: int = 45) -> str:
        whole = "".join(self.random.choices("0123456789", k=self.random.randint(1, most)))
        fraction = "".join(self.random.choices("0123456789", k=self.random.randint(0, 12)))
        sign = self._of("", "", "-")
        return f"{sign}{whole.lstrip('0') or '0'}" + (f".{fraction}" if fraction else "")

    def _bits(self) -> str:
        length = self.random.randint(1, 70)
        bits = "".join(self.random.choices("01", k=length))
        column = self._of("tenant_id", "qty", "score", "parent_id", "id")
        return f"{column}::bit({length}) {self._compared()} B'{bits}'"

    def _length(self) -> str:
        word = self._of(*_WORDS)[:3]
        kind = self._of("varchar", "char")
        cast = f"{self._of(*_TEXTS)}::{kind}({self.random.randint(1, 6)})"
        return f"{cast} {self._of('=', '<>')} '{word}'"

    def _scale(self) -> str:
        scale = self.random.randint(-3, 6)
        cast = f"numeric({self.random.randint(max(scale, 1), 40)},{scale})"
        return f"{self._of(*_NUMBERS)}::{cast} {self._compared()} {self._digits(12)}"

    def _number(self) -> str:
        arithmetic = self._of("", "", f" * {self._digits(33)}", f" + {self._digits(33)}")
        quote = self._of("", "'")
        column = self._of(*_NUMBERS)
        return f"{column}{arithmetic} {self._compared()} {quote}{self._digits()}{quote}"

    def _json_number(self) -> str:
        if self.random.random() < 0.5:
            return f"attrs @> '{{\"total\": {self._digits()}}}'"
        return f"attrs -> 'total' = '{self._digits()}'"

    def _letters(self) -> str:
        column, word = self._of(*_TEXTS), self._of(*_WORDS)
        if self.random.random() < 0.5:
            return f"{column} {self._of('ILIKE', 'NOT ILIKE', 'LIKE')} '{word}'"
        return f"{self._of('lower', 'upper')}({column}) {self._of('=', '<>')} '{word}'"

    def _pattern(self) -> str:
        return f"{self._of(*_TEXTS)} {self._of('~', '!~', '~*', '!~*')} '{self._of(*_PATTERNS)}'"

    def _bytes(self) -> str:
        function = self._of("octet_length", "bit_length", "length", "ascii")
        return (
            f"{function}({self._of(*_TEXTS)}::text) {self._compared()} {self.random.randint(0, 80)}"
        )

    def _hash(self) -> str:
        call = self._of(
            "hashtext(name)", "hashtext(kind)", "hashint8(id)", "hashint4(qty)", "hashint2(weight)",
            "uuid_hash(account_id)", "hashtextextended(org, 7)", "hashint8extended(parent_id, -1)",
            "timestamp_hash(updated_at)", "hashfloat8(rate)", "hashbpchar(kind)",
        )  # fmt: skip
        return f"{call} % {self.random.randint(2, 9)} = {self.random.randint(-1, 3)}"

    def _zone(self) -> str:
        column, zone = self._of("created_at", "updated_at"), self._of(*_ZONES)
        moment = f"'{self._day()} {self.random.randint(0, 23):02}:30:00'"
        suffix = "::timestamptz" if column == "updated_at" else "::timestamp"
        if column == "updated_at":
            moment = moment[:-1] + "+00'"
        return f"({column} AT TIME ZONE '{zone}') {self._compared()} {moment}{suffix}"

    def _day(self) -> str:
        random = self.random
        year = random.choice((1883, 1970, 2022, 2023, 2023, 2024, 4000))
        return f"{year}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"

    def _moment(self) -> str:
        zone = f"{self._of('+', '-')}{self.random.randint(0, 17):02}{self._of('', ':30', ':59')}"
        return f"created_at {self._compared()} '{self._day()}{self._of(' ', 'T')}10:00{zone}'"

    def _interval(self) -> str:
        parts = [
            f"{self._of('', '-')}{self.random.randint(0, 40)}{self._of('', '.5', '.125')}"
            f" {self._of(*_UNITS)}"
            for _ in range(self.random.randint(1, 2))
        ]
        return f"ttl {self._compared()} '{' '.join(parts)}'"

    def _range(self) -> str:
        # an empty constant range contains NULL as false since 17, and as unknown before
        low = self.random.randint(-5, 30)
        high = low + self.random.randint(2, 20)
        opening, closing = self._of("[", "("), self._of("]", ")")
        if self.random.random() < 0.5:
            operator = self._of("&&", "@>", "<@", "=", "<<", "-|-")
            return f"slots {operator} '{opening}{low},{high}{closing}'"
        return f"int4range({low}, {high}, '{opening}{closing}') @> {self._of('qty', 'score')}"

    def _oid(self) -> str:
        column, oid = self._of("weight", "qty", "parent_id"), self.random.randint(0, 2**32 - 1)
        return f"{column}::oid {self._compared()} {oid}"
