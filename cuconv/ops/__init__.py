"""The operations: one module a public function."""
