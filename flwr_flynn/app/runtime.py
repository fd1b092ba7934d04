"""The runtime of a party: Flower's simulation engine, or anything else, which counts as a deployment.

Which of the two a party is must not follow from settings: Flower's tutorials give ``partition-id`` to deployed nodes as
well, a key may be misspelt, and a run's settings come from the server. It follows from the code that called the party:
the simulation engine calls it from a method of an actor of Ray.
"""

from __future__ import annotations

import sys
from types import FrameType

_ACTORS = "flwr.simulation.ray_transport.ray_actor"


def in_simulation() -> bool:
    """Tell whether this call comes from an actor of Flower's simulation engine.

    Nothing is imported: an actor of Ray has Ray, and Flower's module of actors, already. Whatever cannot be shown to be
    a simulation, whether the reason is another version of Flower or of Ray or anything else, is a deployment.
    """
    frame: FrameType | None = None
    try:
        ray = sys.modules["ray"]
        if ray.is_initialized() is True and ray.get_runtime_context().get_actor_id() is not None:
            entry = sys.modules[_ACTORS].VirtualClientEngineActor.run.__code__  # by which it runs a ClientApp
            frame = sys._getframe()
            while frame is not None and frame.f_code is not entry:
                frame = frame.f_back
    except Exception:  # noqa: BLE001 - no proof, whatever the reason
        return False
    return frame is not None
