"""The command line: arguments in, one call, one rendering."""
