"""A router: one model name, behind which each prompt goes to the expert that suits it."""
