"""The program for spark-submit; see `__main__`."""
