"""What the public functions are run on when they are checked, timed, explained and compiled ahead: shapes as values."""
