"""From syntax to a bound expression: names, types, operators, checks, and its printed form."""
