"""The version of caffelite that is installed."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the version, or "unknown" if caffelite runs from a source tree that was never installed."""
    try:
        return version("caffelite")
    except PackageNotFoundError:
        return "unknown"
