"""Make the models that the steps need, in the order in which they do.

It runs beside the step "check", which needs a processor for a moment now and then. What there is no room for is made by
the step that needs it, when others are deleted.
"""

from __future__ import annotations

from .results import LeftOut
from .setting import Setting
from .shapes import WEIGHTS


def make_all(setting: Setting) -> None:
    """Make every model that there is room for."""
    setting.drafts()
    for weights in WEIGHTS:
        for size in setting.sizes:
            try:
                setting.target(size, weights)
            except LeftOut as error:
                print(f"  models: {size} {weights}: {error}", flush=True)
