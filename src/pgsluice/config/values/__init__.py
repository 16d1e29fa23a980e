"""Values of keys: DSNs, quantities, paths, secrets, and names of tables and targets."""
