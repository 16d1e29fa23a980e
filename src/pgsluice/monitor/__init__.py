"""Status and the live view: what pgsluice reports about itself, for people and programs."""
