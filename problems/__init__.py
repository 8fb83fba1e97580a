"""Translation, toy and graph problems, registered with T2T on import, one file a family."""
from problems import (  # noqa: F401
    europarl,
    graphs,
    libreoffice,
    multi30k,
    text_files,
    toy,
    wmt14,
    wmt15,
)
