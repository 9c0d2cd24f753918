"""Frames between event systems, and the two ends of a connection that carries them."""
