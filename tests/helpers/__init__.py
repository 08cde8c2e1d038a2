"""What several suites of tests share; no suite imports from another."""
