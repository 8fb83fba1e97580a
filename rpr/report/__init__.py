"""`rpr report`: compares the runs of a study in tables, figures and one HTML page.

| module | task |
| --- | --- |
| `results` | data classes: `StudyResults` holds `ArmResult`s, which hold `RunResult`s |
| `study_reader` | reads them from run directories |
| `planned_looks` | what the finished runs of a study with `study.looks` decide |
| `comparison` | scores, differences with their significance, letters of the ranking |
| `model_analysis` | reads tables and attention out of trained models (a process per model) |
| `columns`, `tables` | rows and columns, in every format; event files for TensorBoard |
| `plots`, `model_plots` | figures of a study and of one model |
| `html_page` | draws the figures and writes `report.html`, one self-contained file |
"""
