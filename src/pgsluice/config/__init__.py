"""The configuration: a TOML file, checked whole before anything is started.

:func:`load_config` reads it; :class:`Config` and its sections are frozen. Every mistake is
found in one go and said in plain sentences; what this version cannot do yet is refused by
name (:mod:`pgsluice.config.not_yet`). A password is never shown (:func:`mask_dsn`).
"""

from pgsluice.config.dsn import mask_dsn
from pgsluice.config.load import load_config, parse_config
from pgsluice.config.model import (
    Config,
    DeltaSinkConfig,
    PostgresSinkConfig,
    PublicationsConfig,
    SinkConfig,
    SourceConfig,
    SpoolConfig,
    SubscriptionConfig,
)
from pgsluice.config.template import render_config

__all__ = [
    "Config",
    "DeltaSinkConfig",
    "PostgresSinkConfig",
    "PublicationsConfig",
    "SinkConfig",
    "SourceConfig",
    "SpoolConfig",
    "SubscriptionConfig",
    "load_config",
    "mask_dsn",
    "parse_config",
    "render_config",
]
