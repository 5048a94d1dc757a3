"""Elements that pages show: tables, figures, recorded measurements, and calculators."""
