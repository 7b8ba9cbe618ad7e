"""Programs and their limit laws as text and as LaTeX."""
