"""Programs, which users hold: their laws, draws, plans and limits."""
