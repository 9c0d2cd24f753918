"""Nodes: the hosts that do input and output for the core, and the processes they live in."""
