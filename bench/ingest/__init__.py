"""How fast samples come from a rank's spool into SQL and out of it again, beside what others do."""
