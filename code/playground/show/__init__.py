"""What pages show: tables, figures, recorded measurements, calculators."""
