"""Found by Spark by its name: makes `format("clarion")` known without `clarion.spark.register`."""

from clarion.spark.datasource import ClarionDataSource


class DefaultSource(ClarionDataSource):
    """`format("clarion")`."""


__all__ = ["DefaultSource"]
