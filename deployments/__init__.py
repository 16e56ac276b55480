"""How Unitball is started: the command line, served deployments, schedules and triggers."""
