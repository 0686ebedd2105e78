"""Simulated runs: noise as machines make it, the product's own rule, and what others use."""
