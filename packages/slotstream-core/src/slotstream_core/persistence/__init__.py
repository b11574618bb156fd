"""States and replies kept on disk, so that a restarted process goes on where the last one was.

`container.py` one checksummed file, `records.py` what heads, segments and replies hold, `directory.py` the files of one
directory with its lock, quota and order of eviction, `identity.py` whose states they are, `tier.py` what the prefix cache
asks for.
"""
