"""slotstream-core."""

__all__: list[str] = []
