"""Clarion carries event messages that must not be lost. Public names only."""
