"""Names of the vendor's compiler back end that programs import."""
