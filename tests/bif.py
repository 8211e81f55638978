"""A Bayesian network of three variables as a BIF file."""

import gzip
from pathlib import Path

SMALL = """
network small { property of nothing; }   // a comment
variable rain { type discrete [ 2 ] { yes, no }; }
variable sprinkler { type discrete [ 3 ] { on, off, "out of order" }; property x y; }
variable grass { type discrete [ 2 ] { wet, dry }; }
/* another
   comment */
probability ( rain ) { table 0.2, 0.8; }
probability ( sprinkler | rain ) { (yes) 0.01, 0.99, 0; (no) 0.3, 0.5, 0.2; }
probability ( grass | sprinkler, rain ) {
  (on, yes) 0.99, 0.01; (on, no) 0.9, 0.1; (off, yes) 0.8, 0.2; default 0.0, 1.0;
}
"""


def written(folder: Path, text: str = SMALL, name: str = "small.bif") -> Path:
    """Write the file, compressed if its name ends in .gz."""
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path
