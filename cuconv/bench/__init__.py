"""Timing cuconv beside a copy and beside other libraries; results on disk; tables and pictures of them."""
