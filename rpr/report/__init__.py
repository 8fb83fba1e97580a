"""`rpr report`: compares the runs of a study in tables, figures and one HTML page."""
