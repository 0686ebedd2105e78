"""One module for each group of commands; imported when its command is called."""
