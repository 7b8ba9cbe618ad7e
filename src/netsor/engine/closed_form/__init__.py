"""Laws and limits that need no expectation: formulas for whole programs."""
