"""A fleet of simulated agents against real control planes on a real PostgreSQL."""
