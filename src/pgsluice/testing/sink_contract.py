"""The sink contract as tests: a new sink subclasses :class:`SinkContract`.

The subclass only defines how a sink is created and how its tables are read back::

    class TestMySink(SinkContract):
        @pytest.fixture
        def sink(self, tmp_path): ...

        def rows(self, sink, table): ...
"""

from pgsluice.testing.sink_changes import ChangesContract
from pgsluice.testing.sink_columns import ColumnsContract
from pgsluice.testing.sink_copies import CopiesContract
from pgsluice.testing.sink_deleted import DeletedRowsContract
from pgsluice.testing.sink_history import HistoryContract
from pgsluice.testing.sink_keys import KeysContract
from pgsluice.testing.sink_log import LogContract
from pgsluice.testing.sink_staged_changes import StagedChangesContract
from pgsluice.testing.sink_staging import StagingContract
from pgsluice.testing.sink_tests import SCHEMA, TABLE, batches, changes, identity, net, row
from pgsluice.testing.sink_whole_rows import WholeRowsContract

__all__ = ["SCHEMA", "TABLE", "SinkContract", "batches", "changes", "identity", "net", "row"]


class SinkContract(
    CopiesContract,
    ChangesContract,
    ColumnsContract,
    KeysContract,
    StagingContract,
    StagedChangesContract,
    LogContract,
    DeletedRowsContract,
    WholeRowsContract,
    HistoryContract,
):
    """The tests of every sink; see :mod:`pgsluice.sinks.contract`."""
