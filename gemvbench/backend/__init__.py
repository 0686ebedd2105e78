"""Back ends: one device each, behind the interface in `base`. Opened in workers only."""
