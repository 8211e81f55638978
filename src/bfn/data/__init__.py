"""Data: images, texts, records and tables, from files or from the standard sets.

``load`` takes the name of a standard set or a path and returns ``Images``, ``Text`` or ``Records``.
These are kept as they are stored, and become floats or int64 classes a batch at a time:

    images = bfn.data.load("mnist")               # or a folder, .npz, .npy, an idx file
    x = images[index].to_float()                  # (batch, channel, height, width) in [-1, 1]
    text = bfn.data.load("text8")                 # or any text file
    x = text.windows(64, 256, generator)          # (64, 256) int64
    records = bfn.data.load("drugs.csv", columns=bfn.data.Columns(sequence="smiles", conditions=("gap",)))
    x, present = records.padded()                 # {"smiles": (n, longest) int64}, and where they are present
"""

from bfn._utils.files import home
from bfn.data.images import Images, concatenate, from_array
from bfn.data.loading import Part, is_at_hand, load, names
from bfn.data.records import Categories, Column, Columns, Numbers, RawTable, Records, make_records, read_records
from bfn.data.sources import SOURCES, Download, FetchError, Source, fetch
from bfn.data.table_columns import CellType, TableColumn, TableColumns
from bfn.data.table_files import infer_columns, read_table
from bfn.data.text import Sequences, Text, read_text
from bfn.data.tokenizers import AMINO_ACIDS, PATTERNS, TEXT8, Alphabet, Tokenizer, TokenizerFile, TokenList

__all__ = [
    "AMINO_ACIDS", "PATTERNS", "SOURCES", "TEXT8", "Alphabet", "Categories", "CellType", "Column", "Columns",
    "Download", "FetchError", "Images", "Numbers", "Part", "RawTable", "Records", "Sequences", "Source",
    "TableColumn", "TableColumns", "Text", "TokenList", "Tokenizer", "TokenizerFile", "concatenate", "fetch",
    "from_array", "home", "infer_columns", "is_at_hand", "load", "make_records", "names", "read_records",
    "read_table", "read_text",
]  # fmt: skip
