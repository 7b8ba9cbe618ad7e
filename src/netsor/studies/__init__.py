"""Long work that ends in a report, a room for each study; what they share is here.

Finished parts are kept on disk (`_store`) and a run goes on where it stopped; what a user had in a folder is not
overwritten (`_folder`); the work is done by processes of its own (`_workers`); results stand beside a manifest and
tidy tables (`_manifest`) and in one page (`_page`).
"""

from . import paper

__all__ = ["paper"]
