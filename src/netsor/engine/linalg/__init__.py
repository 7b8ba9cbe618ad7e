"""Linear algebra of plans, for batches of matrices that may be singular."""
