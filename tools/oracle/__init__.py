"""Checks the text model against an independent implementation; see `make_goldens.py`."""
