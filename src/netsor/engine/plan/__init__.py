"""Plans: instructions, the builder of plans, their cost, and how they run."""
