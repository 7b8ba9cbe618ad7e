"""Documents, figures and formulas as HTML; one style for all figures."""
