"""The folder that `cuconv exec` puts in front of PYTHONPATH, for the processes that its program starts."""
