"""Other libraries that compute what cuconv does, to be timed beside it: a module a library."""
