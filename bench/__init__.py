"""Benchmarks: each module measures one thing and prints ratios that were measured in one run."""
