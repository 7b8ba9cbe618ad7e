"""The explorer: move a slider, see the law. Views do not know the page; forms request
and show them.
"""
