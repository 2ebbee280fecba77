"""The browser side: reads the API, never the database."""
