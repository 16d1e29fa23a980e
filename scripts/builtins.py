"""Ask a PostgreSQL for its built-in types, operators, functions, casts and keywords.

    python scripts/builtins.py [VERSION]

What a row filter may name is what the server's own parser would find, so the binder works on
the server's own catalog. This writes it to ``src/pgsluice/row_filter/data/``, and the keywords
to ``src/pgsluice/sql/data/``: one file of tab-separated lines for each catalog, without a
header, ordered by OID or name. They are facts of PostgreSQL 18 (newer than any server that we
read from); ``row_filter/catalog.py`` and ``sql/lexer.py`` read them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import psycopg

from pgsluice.embedded import EmbeddedServer

DATA = Path(__file__).resolve().parent.parent / "src/pgsluice/row_filter/data"
KEYWORDS = DATA.parent.parent / "sql/data/keywords.tsv"

# Functions that SQL can call: none that takes or gives what only C can hold.
_NOT_CALLABLE = """ARRAY['internal', 'trigger', 'event_trigger', 'language_handler', 'fdw_handler',
    'index_am_handler', 'table_am_handler', 'tsm_handler']::regtype[]"""

QUERIES = {
    # Row types of catalogs and information_schema's domains are no types of columns.
    "pg_type": """
        SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typispreferred,
               CASE WHEN t.typsubscript = 'array_subscript_handler'::regproc THEN t.typelem
                    ELSE 0 END,
               t.typarray, t.typcollation,
               coalesce(r.rngsubtype, 0), coalesce(r.rngmultitypid, 0),
               t.typsubscript <> 0, format_type(t.oid, NULL)
        FROM pg_type t LEFT JOIN pg_range r ON r.rngtypid = t.oid
        WHERE t.typnamespace = 'pg_catalog'::regnamespace
          AND t.typrelid = 0
          AND NOT EXISTS (SELECT FROM pg_type e WHERE e.oid = t.typelem AND e.typrelid <> 0)
        ORDER BY t.oid""",
    "pg_operator": """
        SELECT oid, oprname, oprleft::oid, oprright::oid, oprresult::oid, oprcode::oid, oprnegate
        FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace ORDER BY oprname, oid""",
    "pg_proc": f"""
        SELECT oid, proname, proargtypes, prorettype::oid,
               CASE WHEN aggkind <> 'n' THEN 'o' ELSE prokind END, provolatile, proretset,
               provariadic::oid, pronargdefaults,
               CASE WHEN proargmodes IS NULL OR NOT (proargmodes && '{{o,t,b}}'::"char"[])
                    THEN array_to_string(proargnames, ',') ELSE '' END
        FROM pg_proc LEFT JOIN pg_aggregate ON aggfnoid = oid
        WHERE pronamespace = 'pg_catalog'::regnamespace
          AND NOT prorettype::regtype = ANY ({_NOT_CALLABLE})
          AND NOT EXISTS (SELECT FROM unnest(proargtypes) t WHERE t = ANY ({_NOT_CALLABLE}))
        ORDER BY proname, oid""",
    "pg_cast": """
        SELECT castsource::oid, casttarget::oid, castfunc::oid, castcontext, castmethod
        FROM pg_cast ORDER BY castsource, casttarget""",
    # Those that every server has; the others depend on its operating system and on ICU.
    "pg_collation": """
        SELECT oid, collname, collisdeterministic FROM pg_collation
        WHERE collnamespace = 'pg_catalog'::regnamespace AND oid < 10000 ORDER BY oid""",
    "btree_operators": """
        SELECT amopopr, amopfamily, amopstrategy FROM pg_amop
        WHERE amopmethod = 403 AND amoppurpose = 's' ORDER BY 1, 2, 3""",
    "keywords": 'SELECT word, catcode FROM pg_get_keywords() ORDER BY word COLLATE "C"',
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", nargs="?", type=int, default=18, help="of the server (18)")
    version = parser.parse_args().version
    DATA.mkdir(exist_ok=True)
    with EmbeddedServer(version) as server, psycopg.connect(server.dsn()) as connection:
        for name, query in QUERIES.items():
            rows = connection.execute(query).fetchall()
            lines = ["\t".join(_text(value) for value in row) for row in rows]
            path = KEYWORDS if name == "keywords" else DATA / f"{name}.tsv"
            path.write_text("".join(f"{line}\n" for line in lines))
            print(f"{name}: {len(rows)} rows")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "t" if value else ""
    return "" if value is None else str(value)


if __name__ == "__main__":
    main()
