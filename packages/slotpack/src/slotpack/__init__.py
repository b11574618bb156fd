"""slotpack."""

__all__: list[str] = []
