"""Other libraries that compute what cuconv does, to be timed beside it: one module per library."""
