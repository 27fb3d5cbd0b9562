"""The TOML configuration: its schema, and errors that name the key, the value and what is allowed."""

from tdcd.config.errors import ConfigError
from tdcd.config.reading import check_config, override, read_config, stored_config
from tdcd.config.schema import Config, LinkSection, ModelSection, NetworkSection, SiloSection

__all__ = [
    "Config",
    "ConfigError",
    "LinkSection",
    "ModelSection",
    "NetworkSection",
    "SiloSection",
    "check_config",
    "override",
    "read_config",
    "stored_config",
]
