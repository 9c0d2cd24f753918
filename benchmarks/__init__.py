"""Side-by-side measurements of Clarion, its peers and the raw limits of the machine (see README.md)."""
