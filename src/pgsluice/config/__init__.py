"""The configuration: a TOML file, validated as a whole before anything starts.

:func:`load_config` reads it; :class:`Config` and its sections are frozen. All errors are reported
together, each as a sentence. No message has a password (:func:`mask_dsn`).
"""

from pgsluice.config.load import load_config, parse_config
from pgsluice.config.model import (
    Config,
    PublicationsConfig,
    SourceConfig,
    SpoolConfig,
    SubscriptionConfig,
)
from pgsluice.config.monitor import MonitorConfig
from pgsluice.config.section import Seconds, TargetPath
from pgsluice.config.sink import SinkConfig, parse_sink
from pgsluice.config.template import render_config
from pgsluice.config.values.dsn import mask_dsn
