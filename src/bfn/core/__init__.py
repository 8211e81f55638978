"""The objects that take part in every sample and every loss: models, flows, heads, solvers, controls, facts."""

__all__: list[str] = []
