"""Deployments: the command line, served flows, schedules and triggers."""
