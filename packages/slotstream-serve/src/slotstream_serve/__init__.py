"""slotstream-serve."""

__all__: list[str] = []
