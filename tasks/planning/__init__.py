"""From a configuration to a typed plan with identities and prices; no rows."""
