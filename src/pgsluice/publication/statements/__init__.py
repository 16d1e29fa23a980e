"""From the SQL of publications to publications: parse, look up, check, execute."""
