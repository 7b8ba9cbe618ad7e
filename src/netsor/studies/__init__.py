"""Studies: long computations that end in a report. These names are for studies outside
of this package.
"""

from ..engine.plan._draw_cost import Draw
from ..report._document import (
    FLAG,
    Block,
    Cell,
    Document,
    Figure,
    Figures,
    Item,
    Items,
    Paragraph,
    Raw,
    Row,
    Section,
    Table,
)
from ..report._html import provenance
from ._convergence import slope_of
from ._cost import Cost, worker_count
from ._output_dir import Arrays, Store, cache_key, derive_seed, to_csv, to_dataframe
from ._study import Request, Result, Run, Study

__all__ = [
    "FLAG",
    "Arrays",
    "Block",
    "Cell",
    "Cost",
    "Document",
    "Draw",
    "Figure",
    "Figures",
    "Item",
    "Items",
    "Paragraph",
    "Raw",
    "Request",
    "Result",
    "Row",
    "Run",
    "Section",
    "Store",
    "Study",
    "Table",
    "cache_key",
    "derive_seed",
    "provenance",
    "slope_of",
    "to_csv",
    "to_dataframe",
    "worker_count",
]
