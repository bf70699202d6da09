"""The report: tables, figures, one page that works offline. Reads Parquet; needs no torch."""
