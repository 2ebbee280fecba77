"""What Streamlit lacks: charts that keep their zoom, tables whose clicks name an id, plain text."""
