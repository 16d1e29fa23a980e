"""Status and the live view: what pgsluice reports about itself, for users and programs."""
