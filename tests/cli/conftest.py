"""The fixtures of this folder's tests."""

from tests.support.commands import pgsluice as pgsluice
from tests.support.commands import write_config as write_config
