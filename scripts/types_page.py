"""Write docs/types.md from the registry of types.

``python scripts/types_page.py`` writes the page; tests/docs/test_types_page.py compares it with the
registry, and decodes the values that it lists as rejects.
"""

from __future__ import annotations

from pathlib import Path

from pgsluice.types import ENTRIES, ColumnType, Entry, TypeOptions, resolve_type

PAGE = Path(__file__).parents[1] / "docs" / "types.md"
_HEAD = """\
# PostgreSQL → Arrow → Delta, and why
Each type of PostgreSQL maps to one Arrow type, which is also the type of the Delta column and of Spark.
`scripts/types_page.py` writes the tables of this page from the registry in the code (`types/registry.py`).

Three rules decide a type:

1. **Exact.** A value converts without loss. No value is rounded, cut or replaced.
2. **If not, text.** A type that Spark and Delta have no equal type for is a string: PostgreSQL's own text of the value, with
   ISO dates, in UTC, with all digits of a float. A cast in PostgreSQL gives back the value.
3. **If a single value does not fit, a reject.** It becomes NULL, and a row of the [rejects table](rejects.md) has its text.

A column of any type is text with `types = { "public.t.c" = "string" }` in the subscription.

## Built-in types
| PostgreSQL | Arrow | Delta and Spark | why | becomes a reject |
|---|---|---|---|---|
"""  # noqa: E501 - lines of the page
_TAIL = """
## Types with a choice
| PostgreSQL | setting | Arrow | Delta and Spark |
|---|---|---|---|
{choices}

With `"double"` a numeric is rounded to the nearest double, because the setting asks for it. With `"decimal(p,s)"` a value
with more digits is a reject. A key column cannot be a double.

## Types that are made of others
| PostgreSQL | Delta and Spark | why |
|---|---|---|
| array | `array` of the element's type | an array of several dimensions, or one that does not start at 1, is a reject: a list has neither |
| domain | its base type | the values are the same |
| enum | `string` | the label; its order is not kept |
| composite | `string`, or a struct with `"struct"` | its attributes can change at any time, which then [copies the table](schema-changes.md) |
| range, multirange | `string`, or a struct with `"struct"` | see [structs](first-hour.md#structs) |
| hstore | `string`, or `map<string,string>` with `"map"` | |
| json, jsonb | `string`, or `variant` with `json = "variant"` or `"variant"` | the text as PostgreSQL prints it: json keeps blanks and equal keys. See [VARIANT](#json-as-variant) |
| types of other extensions | `string` | the text that the type's output function prints |

In a struct, a `numeric` without a precision is text, and so are arrays of ranges, hstore and arrays with another delimiter
than a comma.

## json as VARIANT
With `json = "variant"` in a subscription, its columns of json and jsonb, and of domains over them, are VARIANT, a type of
Delta that has the values of JSON in a binary form: `SELECT v:a.b::int`. `types = {{ "public.t.c" = "variant" }}` makes one
column a VARIANT, `"string"` keeps one a text. Arrays of json stay arrays of texts, and masked columns are texts.

| reader | column |
|---|---|
| Spark 4.2 and 4.1 with Delta 4.4.0, Spark 4.0 with Delta 4.0.1 | `variant`. Spark 4.2 has the operator of the example; 4.0 has only the function: `variant_get(v, '$.a.b', 'int')` |
| Spark 3.5 with Delta 3.3.2 | it refuses the table: "unsupported by Delta Lake 3.3.2: variantType". `pgsluice check` warns if it is the run's own Spark |
| DuckDB 1.5.5 with its `delta` extension | `VARIANT` |
| `deltalake`, polars | a struct of the byte strings `metadata` and `value`, which they do not decode |
| readers that do not know Delta's feature `variantType` | they refuse the table |

| JSON | in the VARIANT |
|---|---|
| whole number | an integer of 8, 16, 32 or 64 bits, the smallest that fits; a larger one is a decimal of up to 38 digits |
| other number | a decimal with the digits that jsonb prints, so that `1.10` stays `1.10`: up to 38 digits, up to 38 of them after the point. Never a double |
| string, `true`, `false`, array, object | the same; the keys of an object are sorted |
| `null` | the VARIANT null; a NULL of the column is NULL |

Equal values of jsonb have equal bytes. A VARIANT keeps neither the blanks of a json nor the order of its keys, so
[`verify`](verify.md) compares a json as jsonb prints it.

These values are [rejects](rejects.md):

- a number with more digits;
- arrays and objects that are nested more than 500 levels deep;
- a value, or the keys of a value, of more than 16 MiB in binary form, which Spark 4.0 refuses;
- an object of 32 keys or more, if one has a character beyond U+FFFF and another one from U+E000 to U+FFFF in its place
  (an emoji and a full-width character, say): Spark would not find some of these keys;
- of the type json only: an object with two equal keys, the escape `\\u0000`, half of a surrogate pair, and a number with an
  exponent of three digits or more.

A VARIANT cannot be a key: such a table is parked, and the message has the setting that keeps the key column a text. If
the setting changes, pgsluice copies the table again; a change log or a history keeps rows of the former type, so its table is
parked.
"""  # noqa: E501 - lines of the page
_SAME = "the same values"
_TEXT = "PostgreSQL's text"
_NAME = "the name, which only the server knows"
WHY = {
    "oid": "it has no sign, so 32 bits with a sign do not hold it",
    "float4": "NaN, infinities and -0 are kept",
    "float8": "NaN, infinities and -0 are kept",
    "numeric": "without a precision of at most 38 digits, no decimal holds all values",
    "bpchar": "trailing blanks are kept",
    "bytea": "the bytes",
    "timestamp": "without a time zone, in microseconds",
    "timestamptz": "a moment, in microseconds of UTC",
    "uuid": "Delta has no UUID",
    "time": "24:00:00 is a time, which no type of Spark has",
    "interval": "months, days and microseconds do not convert into each other",
    "money": "its scale depends on the server's locale",
    "json": "blanks, the order of keys and equal keys are kept",
    "xml": "its declaration and blanks are kept",
}
"""The reasons that do not follow from the Arrow type alone."""
REJECTS = {
    "date": ("infinity", "-infinity", "5874897-12-31"),
    "timestamp": ("infinity", "-infinity", "294276-12-31 23:59:59.999999"),
    "timestamptz": ("infinity", "-infinity", "294276-12-31 23:59:59.999999+00"),
}
"""Values that a column of the type cannot hold, as text."""


def page() -> str:
    """The whole page."""
    rows = [_row(entry) for entry in ENTRIES]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL.format(choices="\n".join(_choices()))


def _row(entry: Entry) -> str:
    kind = entry.make_type(-1, TypeOptions())
    rejects = ", ".join(f"`{text}`" for text in REJECTS.get(entry.name, ()))
    return f"| `{entry.name}` | {_types(kind)} | {_why(entry, kind)} | {rejects} |"


def _why(entry: Entry, kind: ColumnType) -> str:
    if entry.name in WHY:
        return WHY[entry.name]
    if entry.printer is None:
        return _NAME
    return _TEXT if kind.spark_ddl == "string" and entry.name not in _TEXTS else _SAME


_TEXTS = frozenset({"text", "varchar", "name", "char"})


def _choices() -> list[str]:
    numeric = next(entry for entry in ENTRIES if entry.name == "numeric")
    made = [
        ("`numeric(10,2)`", "", numeric.make_type((10 << 16 | 2) + 4, TypeOptions())),
        ("`numeric`", "", numeric.make_type(-1, TypeOptions())),
    ]
    for chosen in ("decimal(38,10)", "double"):
        kind = numeric.make_type(-1, TypeOptions(chosen))
        made.append(("`numeric`", f'`numeric = "{chosen}"`', kind))
    struct = TypeOptions(for_column=True, nested="struct")
    for entry in ENTRIES:
        if entry.name in ("int4range", "datemultirange"):
            kind = resolve_type(entry.oid, -1, {}, struct)
            made.append((f"`{entry.name}`", '`types`: `"struct"`', kind))
        if entry.name == "jsonb":
            kind = resolve_type(entry.oid, -1, {}, TypeOptions(nested="variant"))
            made.append(("`json`, `jsonb`", '`json = "variant"`', kind))
    return [f"| {name} | {setting} | {_types(kind)} |" for name, setting, kind in made]


def _types(kind: ColumnType) -> str:
    return f"`{kind.arrow_type}` | `{kind.spark_ddl}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
