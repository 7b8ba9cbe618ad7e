"""A hook of mkdocs: the foot of every page names the version that it describes."""

from mkdocs.config.defaults import MkDocsConfig

from netsor import __version__


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by mkdocs once, before any page."""
    config.copyright = f"netsor {__version__} · MIT licence"
    return config
