"""The explorer: move a slider, see the law. Views know nothing of the page; forms ask for them, and show them."""
