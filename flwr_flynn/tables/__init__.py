"""Tables with categories, gaps and dates, and the schema by which all parties make
numbers of them.
"""

from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema, read_schema

__all__ = ["Column", "Schema", "read_schema"]
