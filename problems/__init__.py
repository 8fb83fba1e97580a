"""Translation, generated and graph problems, one module per corpus; importing it registers them."""
from rpr.problems import (  # noqa: F401
    europarl,
    graphs,
    length_tasks,
    libreoffice,
    multi30k,
    ruoss,
    text_files,
    toy,
    wmt14,
)
