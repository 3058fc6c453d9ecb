"""Everything from the name of a model to a runtime, without a terminal: for apps, servers and the commands.

    job.py         progress, notices and consent, as values
    resolving.py   from names, repositories, checkpoints and files to files
    fetching.py    downloads from a hub
    converting.py  conversion of checkpoints
    fitting.py     the context and GPU layers that fit into memory
    loading.py     all of these: `edgespec.load`

The hub's client and the converters are imported when they are needed, not with this package.
"""

from .converting import converted, run, size
from .fetching import checkpoint, pull, quietly, target_of_head
from .fitting import fitted
from .job import Fetch, Job, Notice, OnProgress, Progress, Wanted
from .loading import load, open_model_files
from .resolving import resolve

__all__ = [
    "Fetch",
    "Job",
    "Notice",
    "OnProgress",
    "Progress",
    "Wanted",
    "checkpoint",
    "converted",
    "fitted",
    "load",
    "open_model_files",
    "pull",
    "quietly",
    "resolve",
    "run",
    "size",
    "target_of_head",
]
