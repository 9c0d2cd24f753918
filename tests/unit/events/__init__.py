"""Tests of the event system."""
