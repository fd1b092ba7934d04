"""Version of the package; a server and its parties need the same minor version."""

__version__ = "0.8.0"
