"""The event system against real parts."""
