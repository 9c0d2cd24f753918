"""The command line: one module per verb.

Rule: a module here imports at its top only what `clarion --help` needs. Client, server, rich and numpy are imported
inside the function that uses them, so that help and usage errors come at once.
"""
