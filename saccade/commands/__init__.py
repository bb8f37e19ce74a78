"""The command line: a file a group of commands, each command one function."""
