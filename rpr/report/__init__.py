"""`rpr report`: compares the runs of a study in tables, figures and one HTML page.

| module | task |
| --- | --- |
| `results` | data classes: `StudyResults` holds `ArmResult`s, which hold `RunResult`s |
| `study_reader` | reads them from run directories |
| `planned_looks` | what the finished runs of a study with `study.looks` decide |
| `comparison` | scores, differences with their significance, letters of the ranking |
| `model_analysis` | reads tables and attention out of trained models (a process per model) |
| `columns`, `tables` | rows and columns, printed and written as Markdown, CSV, JSON, LaTeX |
| `plots`, `model_plots` | figures of a study and of one model |
| `html_page` | draws the figures and writes `report.html`, one self-contained file |
| `escaping` | makes names and texts of any origin safe in each format |
| `tensorboard` | event files for TensorBoard's HParams plugin |
"""
