"""The configuration: a TOML file, validated as a whole before anything starts.

:func:`load_config` reads it; :class:`Config` and its sections are frozen. All mistakes are
reported together, each as a sentence. Settings that this version does not support are refused
(:mod:`pgsluice.config.unsupported`). No message has a password (:func:`mask_dsn`).
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
