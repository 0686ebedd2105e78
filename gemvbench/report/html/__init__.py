"""A run as one page that stands by itself: text, tables and pictures."""
