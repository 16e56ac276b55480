"""Feature maps that do not look at other rows and therefore have no privacy cost."""
