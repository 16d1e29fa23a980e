"""Publications of pgsluice's own: what PostgreSQL 15+ publishes, on servers from 10 on.

Source: the manual, "CREATE PUBLICATION" and "Row Filters";
src/backend/commands/publicationcmds.c, src/backend/replication/pgoutput/pgoutput.c.
"""
