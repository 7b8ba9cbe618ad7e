"""Operations, one file for each family."""
