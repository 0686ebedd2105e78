"""Whole-process legs: two command lines, run in pairs, judged by the same rule as kernels."""
