"""Models and samples on disk."""
