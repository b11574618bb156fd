"""Conversations kept between requests, so that a follow-up turn reads only what is new.

`kept.py` one kept state, `cache.py` which states are kept and which go, `resuming.py` one prompt's use of the cache,
`boundaries.py` where a prompt may be resumed, `transcripts.py` the exact ids behind replies that clients send back.
"""
