"""Lossless, verified, resumable model packages: the codec, the packer and the downloader."""

from slotpack.codec import decode, decode_many, encode
from slotpack.errors import SlotpackError
from slotpack.frames import Kind

__all__ = ["Kind", "SlotpackError", "decode", "decode_many", "encode"]
