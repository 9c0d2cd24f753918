"""Hostile input against real servers: whatever comes over a socket costs at most that socket."""
