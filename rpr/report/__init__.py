"""`rpr report`: compares the runs of a study in tables, figures and one HTML page.

| module | task |
| --- | --- |
| `results` | data classes: `StudyResults` holds `ArmResult`s, which hold `RunResult`s |
| `study_reader` | reads the run directories of a study into these classes |
| `comparison` | scores all translations; differences from the baseline with their significance |
| `length_buckets` | groups test sentences by the length of their source |
| `model_analysis` | reads tables and attention out of trained models (a process per model) |
| `tables` | the results as rows and columns, printed and in Markdown, LaTeX, HTML, CSV and JSON |
| `plots`, `model_plots` | figures of a study and of one model |
| `html_page` | `report.html`: tables and figures in one self-contained file |
| `tensorboard` | event files for TensorBoard's HParams plugin |
"""
