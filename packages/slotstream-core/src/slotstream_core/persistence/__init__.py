"""States and replies kept on disk, so that a restarted process goes on where the last one was.

`container.py` one checksummed file, `records.py` what heads, segments and replies hold, `scanning.py` what a directory
holds, `locking.py` who may use it, `directory.py` quota, order of eviction and writing, `identity.py` whose states they
are, `writing.py` the thread that writes, `tier.py` what the prefix cache asks for.
"""
