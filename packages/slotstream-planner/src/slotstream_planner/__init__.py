"""slotstream-planner."""

__all__: list[str] = []
