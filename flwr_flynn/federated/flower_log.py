"""The log of the package: Flower's own, which is not imported here."""

from __future__ import annotations

import logging

log = logging.getLogger("flwr")
