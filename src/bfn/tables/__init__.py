"""Tables: a model of rows from a DataFrame or a file, new rows from it, and missing cells.

All numbers are one continuous part on the scale of a standard normal, every column of classes a discrete part
(``bfn.data.table_columns``); a perceptron sees them side by side.
"""

from bfn.tables.sampling import SamplingReport
from bfn.tables.synthesizer import TableSynthesizer

__all__ = ["SamplingReport", "TableSynthesizer"]
