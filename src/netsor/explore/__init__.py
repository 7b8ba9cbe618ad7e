"""The explorer: move a slider, see the law.

A view (settings in; pictures, numbers and code out) knows nothing of the page. `_forms` has the controls as HTML and
answers them: in `netsor explore` through the server of `_server`, on static pages by Python inside the browser.
"""

from ._law_views import Target

__all__ = ["Target"]
