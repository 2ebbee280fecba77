"""HTTP: one module per resource; each says what is asked, calls one function of `control.db`, and
answers.
"""
