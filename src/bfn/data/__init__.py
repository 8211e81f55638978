"""Data: images, text and the standard sets."""
