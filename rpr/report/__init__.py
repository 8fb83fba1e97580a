"""`rpr report`: compares the runs of a study in tables, figures and one HTML page.

| module | task |
| --- | --- |
| `results` | data classes: `StudyResults` holds `ArmResult`s, which hold `RunResult`s |
| `study_reader`, `record` | read them from run directories, or from an earlier results.json |
| `comparison`, `ranking` | scores, differences with their significance, letters of the ranking |
| `length_buckets` | groups test sentences by the length of their source |
| `model_analysis` | reads tables and attention out of trained models (a process per model) |
| `columns`, `tables`, `latex` | rows and columns, printed and in Markdown, HTML, CSV, JSON, LaTeX |
| `figures`, `plots`, `model_plots` | figures of a study and of one model |
| `html_page`, `writer` | `report.html` in one self-contained file; writing all files of a report |
| `escaping` | makes names and texts of any origin safe in each format |
| `tensorboard` | event files for TensorBoard's HParams plugin |
"""
