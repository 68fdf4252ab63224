"""A folder for the front of PYTHONPATH."""
