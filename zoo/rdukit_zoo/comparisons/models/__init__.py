"""Plain torch models of the comparisons; none needs a package beyond torch."""
