"""Data: images and text, from files of the user's or from the standard sets.

``load`` takes the name of a standard set or a path and gives ``Images`` or ``Text``; both hold whole numbers as stored,
and make floats in [-1, 1] or int64 classes a batch at a time:

    images = bfn.data.load("mnist")               # or a folder, .npz, .npy, an idx file
    x = images[index].to_float()                  # (batch, channel, height, width) in [-1, 1]
    text = bfn.data.load("text8")                 # or any text file
    x = text.windows(64, 256, generator)          # (64, 256) int64
"""

from bfn.data.fetching import FetchError, fetch
from bfn.data.images import Images, concatenate, from_array
from bfn.data.loading import Part, is_at_hand, load, names
from bfn.data.sources import SOURCES, Download, Source
from bfn.data.text import TEXT8, Alphabet, Text, read_text
from bfn.files import home

__all__ = [
    "SOURCES",
    "TEXT8",
    "Alphabet",
    "Download",
    "FetchError",
    "Images",
    "Part",
    "Source",
    "Text",
    "concatenate",
    "fetch",
    "from_array",
    "home",
    "is_at_hand",
    "load",
    "names",
    "read_text",
]
