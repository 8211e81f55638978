"""What every sample and every loss passes through."""

__all__: list[str] = []
