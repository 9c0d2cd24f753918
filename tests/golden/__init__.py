"""What earlier versions wrote and said, kept byte by byte: later ones must understand it."""
