"""The pure heart of a message manager: stimulus in, state and instructions out.

Nothing here knows a socket, a file, a clock or a random number. What must survive is changed only by
log entries (`entries`), each applied by `state.State.apply`; everything else is soft and rebuilt by
the clients that come back.
"""
