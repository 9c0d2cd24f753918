"""The bus between client managers and message managers: one interface, loopback and Zenoh."""

from .interface import Bus, Receive, Subscription, Watch
from .loopback import LoopbackBus, LoopbackHub

__all__ = ["Bus", "LoopbackBus", "LoopbackHub", "Receive", "Subscription", "Watch"]
