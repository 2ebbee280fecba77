"""Charts as plain values: what was measured goes in, Plotly figures as dictionaries come out."""
