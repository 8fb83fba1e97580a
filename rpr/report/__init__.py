"""`rpr report`: runs beside each other, with significance, as tables, plots and one page.

`record` holds what is said; `tables`, `plots`, `page` and `tensorboard` are views of it;
`significance` and `lengths` compute, `learned` looks into the models.
"""
