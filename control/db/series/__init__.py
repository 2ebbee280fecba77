"""Series as they are asked for: by charts, rules and exports."""
