"""The paper's tables and figures, and comparisons of solvers on any model."""
