"""The pages. Each shows what the API tells and asks for what a person wants; none decides."""
