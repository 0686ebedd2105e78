"""Benchmarks for airspeed velocity: thin adapters over gemvbench's command line."""
