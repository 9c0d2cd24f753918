"""Cooperating systems: each keeps the other's events, and acts for it while it is not operational (A-10)."""
