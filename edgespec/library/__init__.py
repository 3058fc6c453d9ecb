"""What the commands do before a model answers, without a terminal: for apps, servers, and the terminal itself.

    job.py         what is reported and asked meanwhile, as values
    resolving.py   names, repositories, checkpoints and files to files
    fetching.py    models from a hub
    converting.py  checkpoints to models
    fitting.py     what fits into memory
    loading.py     all of it: `edgespec.load`

The hub's client and the converters are imported when they are needed, not with this.
"""

from .converting import converted, run, size
from .fetching import checkpoint, pull, quietly
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
]
