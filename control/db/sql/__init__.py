"""What every statement stands on: the connection, the schema's version, values that SQL can hold,
and what a failing database means.
"""
