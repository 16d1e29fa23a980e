"""Stories: tests that share one pipeline, because each run of it takes seconds.

A story is a generator function; each ``yield`` in it is one ``pgsluice run --once``, for all the
stories that are told together. It has tables and publications of its own, and changes nothing that
another one depends on. It yields the tables that the run has to leave parked, with patterns of
their errors::

    def a_bad_value_parks_its_table(one: Pipeline) -> Story:
        one.database.execute("CREATE TABLE bad (id int PRIMARY KEY, d date)")
        yield
        one.database.execute("INSERT INTO bad VALUES (1, 'infinity')")
        yield {"bad": "do not fit"}

A story about pgsluice's own publications sets its part of ``one.publications``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from tests.pipeline.own_publications import publishing
from tests.support.pipeline import Pipeline

from pgsluice.errors import TablesUnfinished
from pgsluice.subscription.running.run import run

Story = Iterator[Mapping[str, str] | None]


def tell(one: Pipeline, *stories: Callable[[Pipeline], Story]) -> None:
    """Run the stories side by side to their ends; then raise what failed in them, together."""
    told = {story.__name__: story(one) for story in stories}
    parked: dict[str, Mapping[str, str]] = {}  # a story's last word holds after its end
    failures: list[Exception] = []
    while told:
        for name, story in list(told.items()):
            try:
                parked[name] = next(story) or {}
            except StopIteration:
                del told[name]
            except Exception as error:
                error.add_note(f"in the story {name}")
                failures.append(error)
                del told[name]
        if told:
            _run(one)
            try:
                _assert_parked(one, {t: e for each in parked.values() for t, e in each.items()})
            except AssertionError as error:
                failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} failures in stories of one pipeline", failures)


def _run(one: Pipeline) -> None:
    if one.publications:
        statements = (f"CREATE PUBLICATION {name} {of};\n" for name, of in one.publications.items())
        publishing(one, "".join(statements), lake=tuple(one.publications))
    try:
        run(one.config, once=True)
    except TablesUnfinished as error:
        if error.hint:  # a table waits; parked ones are compared by the caller
            raise


def _assert_parked(one: Pipeline, expected: Mapping[str, str]) -> None:
    errors = {
        table.name: table.error or "" for table in one.record().tables.values() if table.is_parked
    }
    assert errors.keys() == expected.keys(), errors
    for name, pattern in expected.items():
        assert re.search(pattern, errors[name]), errors[name]
