"""Errors of the data recipe.

::

    DataError
    ├── DocumentError   a document breaks the shape that training reads
    └── CorpusError     a source file is missing or cannot be read
"""


class DataError(Exception):
    """Base of every error the data recipe raises on purpose."""


class DocumentError(DataError):
    """A document breaks the shape described in ``documents``."""


class CorpusError(DataError):
    """A source file is missing, is not xz or JSON, or holds something else than expected."""
